// Command scheduler-worker runs a scheduler-worker on the real servers.
package main

import (
	"context"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/metered"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/zookeeper"
	"github.com/minutehand/minutehand/libs/process"
	"github.com/minutehand/minutehand/libs/settings"
	schedulerworker "github.com/minutehand/minutehand/services/scheduler-worker"
)

// configuration holds what an operator may set.
type configuration struct {
	process.Settings
	Partitions settings.Count   `default:"${partitions}" env:"MINUTEHAND_PARTITIONS" placeholder:"N" help:"Partition count, fixed when the stores are set up."`
	Cassandra  cassandra.Access `embed:"" prefix:"cassandra-" envprefix:"MINUTEHAND_CASSANDRA_"`
	Redis      redis.Access     `embed:"" prefix:"redis-" envprefix:"MINUTEHAND_REDIS_"`
	Kafka      kafka.Access     `embed:"" prefix:"kafka-" envprefix:"MINUTEHAND_KAFKA_"`
	ZooKeeper  zookeeper.Access `embed:"" prefix:"zookeeper-" envprefix:"MINUTEHAND_ZOOKEEPER_"`
}

func main() {
	var s configuration
	process.Main("scheduler-worker", "Takes what is due from the partitions that it owns, and dispatches it.", &s, s.open)
}

// open connects to the servers and makes the service.
func (s *configuration) open(ctx context.Context, p *process.Process) (process.Service, error) {
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
	m := metered.New(p.Metrics)
	records := m.Records(hot.Records)
	cfg := schedulerworker.DefaultConfig()
	cfg.Partitions = int(s.Partitions)
	return schedulerworker.New(cfg, schedulerworker.Deps{
		Jobs: m.Jobs(cassandra.NewJobStore(store)), Pending: m.Pending(cassandra.NewPending(store)),
		History: m.History(cassandra.NewHistory(store)), Settings: m.Settings(cassandra.NewSettings(store)), Hot: m.Buckets(hot.Buckets),
		Outcomes: records, Stops: records, Log: m.Log(log), Coord: m.Coordinator(coordinator), Board: m.Board(hot.Board), Logger: p.Logger,
		Metrics: p.Metrics,
	})
}
