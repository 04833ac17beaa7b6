// Command audit-writer runs an audit-writer on the real servers.
package main

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/metered"
	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/process"
	"github.com/minutehand/minutehand/libs/settings"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

// configuration holds what an operator may set.
type configuration struct {
	process.Settings
	Partitions        settings.Count    `default:"${partitions}" env:"MINUTEHAND_PARTITIONS" placeholder:"N" help:"Partition count, fixed when the stores are set up."`
	Cassandra         cassandra.Access  `embed:"" prefix:"cassandra-" envprefix:"MINUTEHAND_CASSANDRA_"`
	Kafka             kafka.Access      `embed:"" prefix:"kafka-" envprefix:"MINUTEHAND_KAFKA_"`
	S3                s3.Access         `embed:"" prefix:"s3-" envprefix:"MINUTEHAND_S3_"`
	ArchiveCloseAfter settings.Duration `default:"1m" env:"MINUTEHAND_ARCHIVE_CLOSE_AFTER" placeholder:"1m" help:"How long an object of the archive takes records at most."`
}

func main() {
	var s configuration
	process.Main("audit-writer", "Writes what became of executions into the history and the archive.", &s, s.open)
}

// open connects to the servers and makes the service.
func (s *configuration) open(ctx context.Context, p *process.Process) (process.Service, error) {
	p.WaitsFor("cassandra")
	store, err := s.Cassandra.Connect(ctx, int(s.Partitions), p.Logger)
	if err != nil {
		return nil, err
	}
	p.AtEnd(store.Close)
	log, err := s.Kafka.Connect(p.Logger)
	if err != nil {
		return nil, err
	}
	p.AtEnd(log.Close)
	bucket, err := s.S3.Connect(ctx, p.Logger)
	if err != nil {
		return nil, err
	}
	p.Needs("cassandra", store.Check)
	p.Needs("kafka", log.Check)
	p.Needs("s3", bucket.Check)
	p.Metrics.MustRegister(admin.Lag(log, dispatch.GroupHistory, dispatch.GroupArchive))
	m := metered.New(p.Metrics)
	cfg := auditwriter.DefaultConfig()
	cfg.Region, cfg.CloseAfter = s.S3.Region, time.Duration(s.ArchiveCloseAfter)
	return auditwriter.New(cfg, auditwriter.Deps{
		History: m.History(cassandra.NewHistory(store)), Archive: m.Archive(bucket), Log: m.Log(log), Logger: p.Logger, Metrics: p.Metrics,
	})
}
