package redis

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/diagnosis"
)

const (
	// leastMajor is the oldest version with the commands that scripts use.
	leastMajor = 7
	// maxNodeTimeout bounds a cluster's node timeout: a replaced master must have ended before an answer says that a job is stopped
	// (decision 32).
	maxNodeTimeout = 10 * time.Second
	diagnoseWithin = 5 * time.Second
)

// Diagnose examines the servers: those settings on which promises rest, memory, replicas, clocks.
func Diagnose(ctx context.Context, o Options, r *diagnosis.Report) {
	ctx, cancel := context.WithTimeout(ctx, diagnoseWithin)
	defer cancel()
	t := Open(o)
	defer func() { _ = t.Close() }()
	var mu sync.Mutex
	seen := map[string]bool{}
	err := t.masters(ctx, func(ctx context.Context, c *redis.Client) error {
		address := c.Options().Addr
		mu.Lock()
		again := seen[address]
		seen[address] = true
		mu.Unlock()
		if again {
			return nil
		}
		before := time.Now()
		theirs, err := c.Time(ctx).Result()
		after := time.Now()
		if err != nil {
			return err
		}
		info, err := c.Info(ctx).Result()
		if err != nil {
			return err
		}
		e := examined{r: r, c: c, subject: "redis " + address, info: info}
		r.Clock(e.subject, theirs, before, after, 0)
		e.version()
		e.memory()
		e.durability(ctx, o.Cluster)
		return nil
	})
	if err != nil {
		r.Wrong("redis "+o.Address, "bring it back; until then due work waits (runbooks/lost-redis.md)", "it does not answer: %v", err)
	}
}

// examined is a server that is looked at, with what it says of itself.
type examined struct {
	r             *diagnosis.Report
	c             *redis.Client
	subject, info string
}

func (e *examined) version() {
	version := infoField(e.info, "redis_version")
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < leastMajor {
		e.r.Wrong(e.subject, "upgrade it", "it is version %s, and %d is needed", version, leastMajor)
		return
	}
	e.r.Fine(e.subject, "it is version %s", version)
}

func (e *examined) memory() {
	used, limit := infoNumber(e.info, "used_memory"), infoNumber(e.info, "maxmemory")
	switch {
	case evicts(e.info):
		e.r.Wrong(e.subject, "CONFIG SET maxmemory-policy noeviction, and in its configuration", "it may evict keys (%s), and with them the record that a job was cancelled",
			infoField(e.info, "maxmemory_policy"))
	case infoNumber(e.info, "evicted_keys") > 0:
		e.r.Notice(e.subject, "keep maxmemory-policy at noeviction; its partitions were asked for again at the time", "it has evicted %d keys since it started",
			infoNumber(e.info, "evicted_keys"))
	default:
		e.r.Fine(e.subject, "it evicts nothing")
	}
	const mib = 1 << 20
	switch {
	case limit == 0:
		e.r.Notice(e.subject, "set maxmemory to three quarters of the machine's: a server that takes everything is ended by the kernel", "it uses %d MiB, and has no maxmemory", used/mib)
	case float64(used) > valveOpens*float64(limit):
		e.r.Wrong(e.subject, "give it more memory (runbooks/MinutehandHotTierFull.md)", "it uses %d of %d MiB", used/mib, limit/mib)
	default:
		e.r.Fine(e.subject, "it uses %d of %d MiB", used/mib, limit/mib)
	}
}

// durability looks at what is left when the server fails.
func (e *examined) durability(ctx context.Context, cluster bool) {
	inStep := strings.Count(e.info, "state=online")
	if replicas := infoNumber(e.info, "connected_slaves"); replicas == 0 || inStep == 0 {
		const do = "give each master a replica in another zone; without one due work waits until the server is back, and what only it knew may be called again"
		e.r.Notice(e.subject, do, "it has no replica in step")
	} else {
		e.r.Fine(e.subject, "%d of %d replicas are in step", inStep, replicas)
	}
	number := func(name string) int64 { // -1 where a managed server does not tell
		values, err := e.c.ConfigGet(ctx, name).Result()
		if err != nil {
			return -1
		}
		n, err := strconv.ParseInt(values[name], 10, 64)
		if err != nil {
			return -1
		}
		return n
	}
	switch most := maxNodeTimeout.Milliseconds(); {
	case cluster:
		if ms := number("cluster-node-timeout"); ms > most {
			e.r.Wrong(e.subject, "CONFIG SET cluster-node-timeout 10000 or less", "its cluster-node-timeout is %d ms: a master that was replaced could go on answering for longer than an answer waits for it", ms)
		}
	case inStep > 0:
		if write, lag := number("min-replicas-to-write"), number("min-replicas-max-lag"); write == 0 || lag > most/1000 {
			e.r.Wrong(e.subject, "CONFIG SET min-replicas-to-write to the number of replicas and min-replicas-max-lag to 10 or less",
				"min-replicas-to-write is %d and min-replicas-max-lag %d: a master that was replaced could go on answering", write, lag)
		}
	}
}
