//go:build servers && zone

package cluster_test

import (
	"fmt"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/loadtest/fleet"
	"github.com/minutehand/minutehand/loadtest/ledger"
	"github.com/minutehand/minutehand/loadtest/users"
)

const (
	// worksWithin is how soon after the loss of a zone everything works as before.
	worksWithin = 60 * time.Second
	// punctual is how late a call may come then, and how long a registration may take.
	punctual = time.Second
	// zoneAwayFor is how long the zone stays away.
	zoneAwayFor = 2 * time.Minute
)

// inThreeZones spreads an installation over three nodes of each server, which it starts.
func inThreeZones(c *installation) {
	local(c.t, "up", "--nodes", "3", "cassandra")
	local(c.t, "up", "--cluster", "redis", "zookeeper", "kafka")
	_, port, err := net.SplitHostPort(servertest.Address(c.t, "CASSANDRA"))
	c.must(err)
	c.config.Cassandra.Hosts = nil
	for i := range 3 {
		c.config.Cassandra.Hosts = append(c.config.Cassandra.Hosts, fmt.Sprintf("127.0.0.%d:%s", i+1, port))
	}
	c.config.Replication = "{'class': 'SimpleStrategy', 'replication_factor': 3}"
	c.config.Kafka.Brokers, c.config.Kafka.Replication = servertest.Addresses(c.t, "KAFKA_CLUSTER", 3), 3
	c.config.ZooKeeper.Servers = servertest.Addresses(c.t, "ZOOKEEPER_CLUSTER", 3)
	c.config.Redis.Address, c.config.Redis.Cluster = servertest.Address(c.t, "REDIS_CLUSTER"), true
}

// controller returns the number of the broker that decides for the others.
func (f *platform) controller() int32 {
	f.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(f.config.Kafka.Brokers...))
	f.must(err)
	defer client.Close()
	m, err := kadm.NewClient(client).BrokerMetadata(f.t.Context())
	f.must(err)
	return m.Controller
}

// A zone goes with everything in it at once: a node of Cassandra, the broker that decides for the others, a node of ZooKeeper, a master of
// Redis, and one process of each service. Nobody restarts anything.
func TestLossOfAZoneLosesNothingAndIsOverWithinAMinute(t *testing.T) {
	f := newInstallation(t, inThreeZones).fleet()
	u := f.users(40, zoneAwayFor, func(c *users.Config) {
		c.Base = func(int) string { return "http://" + f.Member("job-api", 0).Listen }
	})
	ids, from := f.stream(zoneAwayFor + 40*time.Second)
	probes := f.probe(1)
	time.Sleep(time.Until(from.Add(20 * time.Second)))

	zone := f.controller()
	master, _ := servertest.RedisServers(t, "{p0}")
	lost := time.Now()
	for _, s := range fleet.Services() {
		f.Member(s, 1).Signal(syscall.SIGKILL)
	}
	master.Signal(syscall.SIGKILL)
	local(t, "kill", fmt.Sprint("kafka-", zone), fmt.Sprint("cassandra-", zone), fmt.Sprint("zookeeper-", zone))
	gone := time.Now()
	time.Sleep(zoneAwayFor)

	f.worked(probes, ids, lost)
	local(t, "up", "--nodes", "3", "cassandra")
	local(t, "up", "--cluster", "redis", "zookeeper", "kafka")
	for _, s := range fleet.Services() {
		f.restart(s, 1)
	}
	ids = append(ids, probes.end()...)
	f.awaitCalls(ids)
	u.Wait()
	_, repeated := f.sink.missing(ids)
	t.Logf("zone %d of three was killed within %.1f s; %d of %d jobs were called again", zone, gone.Sub(lost).Seconds(), repeated, len(ids))
	f.check(func(a *ledger.Account) { a.HotLost = true })
	t.Log(u.Summary())
}

// worked logs when calls were punctual again and registrations accepted, and checks that it was soon enough.
func (f *platform) worked(p *prober, ids []string, lost time.Time) {
	f.t.Helper()
	var late, refused time.Duration
	slowest, lateCalls, refusals := time.Duration(0), 0, 0
	stream := map[string]bool{}
	for _, id := range ids {
		stream[id] = true
	}
	for _, c := range f.sink.all() {
		if by := c.At.Sub(c.ScheduledFor); stream[c.JobID] && by > punctual {
			lateCalls++
			slowest, late = max(slowest, by), max(late, c.ScheduledFor.Sub(lost))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.answers {
		if a.at.After(lost) && (a.status != http.StatusCreated || a.took > punctual) {
			refusals++
			refused = max(refused, a.at.Sub(lost))
		}
	}
	f.t.Logf("calls of jobs that fell due up to %.1f s after the loss were late (%d, the latest by %.1f s); "+
		"registrations up to %.1f s after it failed or took longer than %s (%d of %d)",
		late.Seconds(), lateCalls, slowest.Seconds(), refused.Seconds(), punctual, refusals, len(p.answers))
	if late > worksWithin || refused > worksWithin {
		f.t.Errorf("not everything worked again within %s", worksWithin)
	}
}
