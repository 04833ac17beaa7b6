// Command bucket-loader runs a bucket-loader on the real servers.
package main

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/metered"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/zookeeper"
	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/process"
	"github.com/minutehand/minutehand/libs/settings"
	bucketloader "github.com/minutehand/minutehand/services/bucket-loader"
)

// configuration holds what an operator may set.
type configuration struct {
	process.Settings
	Partitions settings.Count   `default:"${partitions}" env:"MINUTEHAND_PARTITIONS" placeholder:"N" help:"Partition count, fixed when the stores are set up."`
	Cassandra  cassandra.Access `embed:"" prefix:"cassandra-" envprefix:"MINUTEHAND_CASSANDRA_"`
	Redis      redis.Access     `embed:"" prefix:"redis-" envprefix:"MINUTEHAND_REDIS_"`
	Kafka      kafka.Access     `embed:"" prefix:"kafka-" envprefix:"MINUTEHAND_KAFKA_"`
	ZooKeeper  zookeeper.Access `embed:"" prefix:"zookeeper-" envprefix:"MINUTEHAND_ZOOKEEPER_"`

	ScheduleAuditRate  settings.Count    `default:"200" env:"MINUTEHAND_SCHEDULE_AUDIT_RATE" placeholder:"N" help:"How many jobs a second the audit of the schedules looks at."`
	ScheduleAuditPause settings.Duration `default:"10m" env:"MINUTEHAND_SCHEDULE_AUDIT_PAUSE" placeholder:"10m" help:"How long after a pass over all jobs that audit begins anew."`

	AllowPrivateTargets bool `env:"MINUTEHAND_ALLOW_PRIVATE_TARGETS" help:"Tell owners of jobs who are at loopback and private addresses."`
}

func main() {
	var s configuration
	process.Main("bucket-loader", "Brings entries into the hot buckets, puts back what is missing there, and closes minutes.", &s, s.open)
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
	// A group of which no process is left does not tell how far it is behind, so loaders tell of all.
	p.Metrics.MustRegister(redis.Usage(hot.Tier), admin.Lag(log, dispatch.GroupExecutor, dispatch.GroupSettle, dispatch.GroupHistory, dispatch.GroupArchive))
	m := metered.New(p.Metrics)
	cfg := bucketloader.DefaultConfig()
	cfg.Partitions = int(s.Partitions)
	cfg.Schedules.Rate, cfg.Schedules.Pause = int(s.ScheduleAuditRate), time.Duration(s.ScheduleAuditPause)
	cfg.AllowPrivateTargets = s.AllowPrivateTargets
	return bucketloader.New(cfg, bucketloader.Deps{
		Jobs: m.Jobs(cassandra.NewJobStore(store)), Pending: m.Pending(cassandra.NewPending(store)),
		History: m.History(cassandra.NewHistory(store)), Settings: m.Settings(cassandra.NewSettings(store)), Hot: m.Buckets(hot.Buckets), Records: m.Records(hot.Records), Log: m.Log(log),
		Coord: m.Coordinator(coordinator), Logger: p.Logger, Metrics: p.Metrics,
	})
}
