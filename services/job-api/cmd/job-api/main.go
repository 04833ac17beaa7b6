// Command job-api runs a job-api on the real servers.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/metered"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/descriptors"
	"github.com/minutehand/minutehand/libs/process"
	"github.com/minutehand/minutehand/libs/settings"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// configuration holds what an operator may set.
type configuration struct {
	process.Settings
	Partitions settings.Count   `default:"${partitions}" env:"MINUTEHAND_PARTITIONS" placeholder:"N" help:"Partition count, fixed when the stores are set up."`
	Cassandra  cassandra.Access `embed:"" prefix:"cassandra-" envprefix:"MINUTEHAND_CASSANDRA_"`
	Redis      redis.Access     `embed:"" prefix:"redis-" envprefix:"MINUTEHAND_REDIS_"`
	Kafka      kafka.Access     `embed:"" prefix:"kafka-" envprefix:"MINUTEHAND_KAFKA_"`
	Listen     string           `default:"127.0.0.1:8080" env:"MINUTEHAND_LISTEN" placeholder:"HOST:PORT" help:"Where the API answers."`
	jobapi.Protection
}

func main() {
	var s configuration
	process.Main("job-api", "Answers the public API.", &s, s.open)
}

// open connects to the servers and makes the service.
func (s *configuration) open(ctx context.Context, p *process.Process) (process.Service, error) {
	cfg := jobapi.DefaultConfig()
	cfg.Partitions = int(s.Partitions)
	listener, err := s.listen(&cfg, p.Logger)
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
	p.Needs("cassandra", store.Check)
	m := metered.New(p.Metrics)
	return jobapi.New(cfg, jobapi.Deps{
		Jobs: m.Jobs(cassandra.NewJobStore(store)), Pending: m.Pending(cassandra.NewPending(store)),
		History: m.History(cassandra.NewHistory(store)), Settings: m.Settings(cassandra.NewSettings(store)), Hot: m.Buckets(hot.Buckets),
		Records: m.Records(hot.Records), Log: m.Log(log), Pools: m.Pools(hot.Pools), Listener: listener, Logger: p.Logger, Metrics: p.Metrics,
	})
}

// listen opens the API's address, which must be loopback unless credentials are asked for, or an explicit word says otherwise.
func (s *configuration) listen(cfg *jobapi.Config, logger *slog.Logger) (net.Listener, error) {
	share, err := descriptors.Of(descriptors.Limit())
	if err != nil {
		return nil, err
	}
	cfg.MaxConnections = min(cfg.MaxConnections, share.Clients)
	listener, err := net.Listen("tcp", s.Listen) //nolint:noctx // the listener lives as long as the process
	if err != nil {
		return nil, fmt.Errorf("%sLISTEN: cannot listen on %s: %w", settings.Prefix, s.Listen, err)
	}
	err = s.Protect(cfg, listener.Addr(), logger)
	if errors.Is(err, jobapi.ErrOpen) {
		err = fmt.Errorf("%s is not a loopback address: set %sAUTH_TOKEN_FILE or %[2]sJWT_KEYS, or %[2]sINSECURE to let everyone in", s.Listen, settings.Prefix)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}
