// Command executor runs an executor on the real servers.
package main

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/messengers"
	"github.com/minutehand/minutehand/libs/adapters/metered"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/zookeeper"
	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/descriptors"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/egress"
	"github.com/minutehand/minutehand/libs/process"
	"github.com/minutehand/minutehand/libs/settings"
	"github.com/minutehand/minutehand/services/executor"
)

// configuration holds what an operator may set.
type configuration struct {
	process.Settings
	Partitions          settings.Count    `default:"${partitions}" env:"MINUTEHAND_PARTITIONS" placeholder:"N" help:"Partition count, fixed when the stores are set up."`
	Cassandra           cassandra.Access  `embed:"" prefix:"cassandra-" envprefix:"MINUTEHAND_CASSANDRA_"`
	Redis               redis.Access      `embed:"" prefix:"redis-" envprefix:"MINUTEHAND_REDIS_"`
	Kafka               kafka.Access      `embed:"" prefix:"kafka-" envprefix:"MINUTEHAND_KAFKA_"`
	ZooKeeper           zookeeper.Access  `embed:"" prefix:"zookeeper-" envprefix:"MINUTEHAND_ZOOKEEPER_"`
	AllowPrivateTargets bool              `env:"MINUTEHAND_ALLOW_PRIVATE_TARGETS" help:"Call loopback and private addresses."`
	DrainLimit          settings.Duration `default:"20s" env:"MINUTEHAND_DRAIN_LIMIT" placeholder:"20s" help:"How long a stop waits for calls under way; others take over what still runs then."`
}

func main() {
	var s configuration
	process.Main("executor", "Calls the targets of what was dispatched, once each.", &s, s.open)
}

// open connects to the servers and makes the service.
func (s *configuration) open(ctx context.Context, p *process.Process) (process.Service, error) {
	share, err := descriptors.Of(descriptors.Limit())
	if err != nil {
		return nil, err
	}
	p.WaitsFor("cassandra")
	store, err := s.Cassandra.Connect(ctx, int(s.Partitions), p.Logger)
	if err != nil {
		return nil, err
	}
	p.AtEnd(store.Close)
	hot, err := s.Redis.Connect(ctx, int(s.Partitions), p.Logger)
	if err != nil {
		return nil, err
	}
	p.AtEnd(hot.Close)
	log, err := s.Kafka.Connect(p.Logger)
	if err != nil {
		return nil, err
	}
	p.AtEnd(log.Close)
	coordinator, err := s.ZooKeeper.Connect(int(s.Partitions), p.Logger, p.Metrics)
	if err != nil {
		return nil, err
	}
	p.AtEnd(func() { _ = coordinator.Close() })
	p.Needs("cassandra", store.Check)
	p.Needs("redis", hot.Check)
	p.Needs("kafka", log.Check)
	p.Metrics.MustRegister(admin.Lag(log, dispatch.GroupExecutor))
	m := metered.New(p.Metrics)
	cfg := executor.DefaultConfig()
	cfg.AllowPrivateTargets, cfg.DrainLimit = s.AllowPrivateTargets, time.Duration(s.DrainLimit)
	cfg.Name = process.Host()
	brokers, calls := messengers.Share(share.Calls)
	cfg.Within(calls, process.OwnMemory())
	return executor.New(cfg, executor.Deps{
		Jobs: m.Jobs(cassandra.NewJobStore(store)), Pending: m.Pending(cassandra.NewPending(store)), Records: m.Records(hot.Records),
		Log: m.Log(log), Coord: m.Coordinator(coordinator), Board: m.Board(hot.Board), Nap: clock.Nap, Pools: m.Pools(hot.Pools),
		Connections: m.Settings(cassandra.NewSettings(store)), Messengers: messengers.All(egress.Dialer(s.AllowPrivateTargets).DialContext, brokers),
		Logger: p.Logger, Metrics: p.Metrics,
	})
}
