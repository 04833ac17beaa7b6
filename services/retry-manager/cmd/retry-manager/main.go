// Command retry-manager runs a retry-manager on the real servers.
package main

import (
	"context"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/metered"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/process"
	"github.com/minutehand/minutehand/libs/settings"
	retrymanager "github.com/minutehand/minutehand/services/retry-manager"
)

// configuration holds what an operator may set.
type configuration struct {
	process.Settings
	Partitions settings.Count   `default:"${partitions}" env:"MINUTEHAND_PARTITIONS" placeholder:"N" help:"Partition count, fixed when the stores are set up."`
	Cassandra  cassandra.Access `embed:"" prefix:"cassandra-" envprefix:"MINUTEHAND_CASSANDRA_"`
	Redis      redis.Access     `embed:"" prefix:"redis-" envprefix:"MINUTEHAND_REDIS_"`
	Kafka      kafka.Access     `embed:"" prefix:"kafka-" envprefix:"MINUTEHAND_KAFKA_"`
}

func main() {
	var s configuration
	process.Main("retry-manager", "Settles what was executed: marks it done, writes the next attempt, or gives it up.", &s, s.open)
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
	p.Needs("cassandra", store.Check)
	p.Needs("redis", hot.Check)
	p.Needs("kafka", log.Check)
	p.Metrics.MustRegister(admin.Lag(log, dispatch.GroupSettle))
	m := metered.New(p.Metrics)
	cfg := retrymanager.DefaultConfig()
	cfg.Partitions = int(s.Partitions)
	return retrymanager.New(cfg, retrymanager.Deps{
		Jobs: m.Jobs(cassandra.NewJobStore(store)), Pending: m.Pending(cassandra.NewPending(store)),
		History: m.History(cassandra.NewHistory(store)), Hot: m.Buckets(hot.Buckets), Stops: m.Records(hot.Records), Log: m.Log(log),
		Settings: m.Settings(cassandra.NewSettings(store)), Logger: p.Logger, Metrics: p.Metrics,
	})
}
