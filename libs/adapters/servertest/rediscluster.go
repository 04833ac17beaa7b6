package servertest

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisServer is a server of the Redis Cluster that infra/local started.
type RedisServer struct {
	*redis.Client
	t   testing.TB
	pid int
}

// RedisServers returns the master that holds a key and its replica, when they are in step.
func RedisServers(t testing.TB, key string) (master, replica *RedisServer) {
	t.Helper()
	at := func(address string) *RedisServer {
		c := redis.NewClient(&redis.Options{Addr: address})
		t.Cleanup(func() { _ = c.Close() })
		return &RedisServer{Client: c, t: t}
	}
	port, err := strconv.Atoi(os.Getenv("REDIS_CLUSTER_PORT"))
	if err != nil {
		t.Fatal("REDIS_CLUSTER_PORT is not set; run make test-servers")
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		for i := range 6 {
			server := at(fmt.Sprint("127.0.0.1:", port+i))
			slot, err := server.ClusterKeySlot(t.Context(), key).Result()
			if err != nil {
				continue // it is away
			}
			shards, err := server.ClusterShards(t.Context()).Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, shard := range shards {
				roles := map[string]*RedisServer{}
				for _, n := range shard.Nodes {
					if n.Health == "online" {
						roles[n.Role] = at(fmt.Sprintf("%s:%d", n.IP, n.Port))
					}
				}
				master, replica := roles["master"], roles["replica"]
				for _, r := range shard.Slots {
					if r.Start <= slot && slot <= r.End && master != nil && replica != nil && master.reigns() && replica.follows() {
						return master, replica
					}
				}
			}
		}
	}
	t.Fatalf("%s is held by no master with a replica", key)
	return nil, nil
}

var processID = regexp.MustCompile(`process_id:(\d+)`)

// Signal sends a signal to the server's process.
func (s *RedisServer) Signal(signal syscall.Signal) {
	s.t.Helper()
	if s.pid == 0 { // a suspended server cannot be asked
		info, err := s.Info(s.t.Context(), "server").Result()
		if err != nil {
			s.t.Fatal(err)
		}
		if s.pid, err = strconv.Atoi(processID.FindStringSubmatch(info)[1]); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := syscall.Kill(s.pid, signal); err != nil {
		s.t.Fatal(err)
	}
}

// Promote makes a replica the master. It returns when both know.
func (s *RedisServer) Promote(master *RedisServer) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if err := s.ClusterFailover(s.t.Context()).Err(); err != nil { // it considers its master failed, having been suspended itself
			time.Sleep(20 * time.Millisecond)
			continue
		}
		// It gives up after five seconds; asking before would start over.
		for began := time.Now(); time.Since(began) < 6*time.Second; time.Sleep(20 * time.Millisecond) {
			if s.reigns() && master.follows() {
				return
			}
		}
	}
	s.t.Fatal("the replica is not promoted")
}

// reigns reports whether the server considers itself a master, follows whether it considers itself a replica that is in step.
func (s *RedisServer) reigns() bool { role := s.role(); return role[0] == "master" }

func (s *RedisServer) follows() bool {
	role := s.role()
	return role[0] == "slave" && role[3] == "connected"
}

func (s *RedisServer) role() []any {
	role, err := s.Do(s.t.Context(), "ROLE").Slice()
	if err != nil {
		return []any{"away"}
	}
	return role
}
