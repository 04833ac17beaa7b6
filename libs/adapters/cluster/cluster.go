// Package cluster opens all of the real servers, for whatever works on every one of them: a migration, the demo, tests and benches.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/metered"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/adapters/zookeeper"
	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/settings"
)

// Settings say where the servers are, and what else a migration needs. The defaults are for three nodes or more of each server;
// infra/local/local env prints what its own single servers need.
type Settings struct {
	Partitions  settings.Count   `default:"${partitions}" env:"MINUTEHAND_PARTITIONS" placeholder:"N" help:"Partition count, fixed when the stores are set up."`
	Cassandra   cassandra.Access `embed:"" prefix:"cassandra-" envprefix:"MINUTEHAND_CASSANDRA_"`
	Kafka       kafka.Access     `embed:"" prefix:"kafka-" envprefix:"MINUTEHAND_KAFKA_"`
	Redis       redis.Access     `embed:"" prefix:"redis-" envprefix:"MINUTEHAND_REDIS_"`
	ZooKeeper   zookeeper.Access `embed:"" prefix:"zookeeper-" envprefix:"MINUTEHAND_ZOOKEEPER_"`
	S3          s3.Access        `embed:"" prefix:"s3-" envprefix:"MINUTEHAND_S3_"`
	Replication string           `name:"cassandra-replication" default:"{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}" env:"MINUTEHAND_CASSANDRA_REPLICATION" placeholder:"MAP" help:"Replication of the keyspace that a migration makes, in CQL."`
	Topics      settings.Count   `name:"kafka-partitions" default:"32" env:"MINUTEHAND_KAFKA_PARTITIONS" placeholder:"N" help:"Partitions of the topics that a migration makes."`
	Copies      settings.Count   `name:"kafka-replication" default:"3" env:"MINUTEHAND_KAFKA_REPLICATION" placeholder:"N" help:"Replication factor of the topics that a migration makes."`
}

// Servers returns the configuration that the settings state.
func (s *Settings) Servers(logger *slog.Logger) (Config, error) {
	cassandraOptions, err := s.Cassandra.Options(logger)
	redisOptions, err2 := s.Redis.Options(logger)
	s3Options, err3 := s.S3.Options(logger)
	kafkaOptions, err4 := s.Kafka.Options(logger)
	zookeeperOptions, err5 := s.ZooKeeper.Options(logger)
	zookeeperOptions.Partitions = int(s.Partitions)
	kafkaOptions.Partitions, kafkaOptions.Replication = int(s.Topics), int(s.Copies)
	return Config{
		Partitions: int(s.Partitions), Replication: s.Replication, Cassandra: cassandraOptions, Redis: redisOptions, S3: s3Options,
		Kafka: kafkaOptions, ZooKeeper: zookeeperOptions,
	}, errors.Join(err, err2, err3, err4, err5)
}

// Config says where the servers are.
type Config struct {
	// Partitions is the partition count, fixed when the stores are set up.
	Partitions int
	Cassandra  cassandra.Options
	// Replication is that of the keyspace, in CQL; only a migration uses it.
	Replication string
	// ForRestore makes a migration leave the tables empty, for what a backup holds: low-water marks of today would be newer than those
	// of the backup, and close minutes whose entries are not done.
	ForRestore bool
	// HistoryShards is over how many shards a migration spreads the one-shots' history of a minute; nil leaves that as it is.
	HistoryShards *int
	Kafka         kafka.Options
	Redis         redis.Options
	ZooKeeper     zookeeper.Options
	S3            s3.Options
}

// Cluster is a process's connections to the servers, as ports.
type Cluster struct {
	Jobs     jobstore.Jobs
	Pending  jobstore.Pending
	History  jobstore.History
	Settings jobstore.Settings
	Hot      hotbucket.Buckets
	Records  attempts.Records
	Log      dispatch.Log
	Coord    coord.Coordinator
	Archive  archive.Archive
	Board    capacity.Board

	store  *cassandra.Store
	hot    *redis.HotTier
	log    *kafka.Log
	coord  *zookeeper.Coordinator
	bucket *s3.Archive
}

// Open connects. Of the servers only Cassandra must answer for that. It must have the expected partition count (ErrPartitions), and
// a single data centre or the one that is named (cassandra.ErrDatacenter). A Redis that answers must not evict keys
// (redis.ErrEvicts). Every call of a port is measured.
func Open(ctx context.Context, cfg Config, logger *slog.Logger, metrics prometheus.Registerer) (*Cluster, error) {
	c := &Cluster{}
	if err := c.open(ctx, cfg, logger, metrics); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) open(ctx context.Context, cfg Config, logger *slog.Logger, metrics prometheus.Registerer) (err error) {
	if c.store, err = cassandra.OpenChecked(ctx, cfg.Cassandra, cfg.Partitions); err != nil {
		return err
	}
	cfg.Kafka.Logger, cfg.ZooKeeper.Logger, cfg.ZooKeeper.Metrics = logger, logger, metrics
	if c.log, err = kafka.Open(cfg.Kafka); err != nil {
		return err
	}
	if c.coord, err = zookeeper.Open(cfg.ZooKeeper); err != nil {
		return err
	}
	if c.bucket, err = s3.NewArchive(ctx, cfg.S3); err != nil {
		return err
	}
	cfg.Redis.Partitions = cfg.Partitions
	if c.hot, err = redis.OpenHotTier(ctx, cfg.Redis, logger); err != nil {
		return err
	}
	m := metered.New(metrics)
	c.Jobs, c.Pending = m.Jobs(cassandra.NewJobStore(c.store)), m.Pending(cassandra.NewPending(c.store))
	c.History, c.Settings = m.History(cassandra.NewHistory(c.store)), m.Settings(cassandra.NewSettings(c.store))
	c.Hot, c.Records, c.Board = m.Buckets(c.hot.Buckets), m.Records(c.hot.Records), m.Board(c.hot.Board)
	c.Log, c.Coord, c.Archive = m.Log(c.log), m.Coordinator(c.coord), m.Archive(c.bucket)
	return nil
}

// EnsureTopics creates the log's topics that do not exist.
func (c *Cluster) EnsureTopics(ctx context.Context) error { return c.log.EnsureTopics(ctx) }

// Close closes the connections.
func (c *Cluster) Close() {
	if c.hot != nil {
		c.hot.Close()
	}
	if c.coord != nil {
		_ = c.coord.Close()
	}
	if c.log != nil {
		c.log.Close()
	}
	if c.store != nil {
		c.store.Close()
	}
}

// checkTimeout bounds the check whether a server answers.
const checkTimeout = 2 * time.Second

// Server is a server that services use, by the name that Missing returns.
type Server string

// The servers.
const (
	Cassandra Server = "cassandra"
	Redis     Server = "redis"
	Kafka     Server = "kafka"
	ZooKeeper Server = "zookeeper"
	S3        Server = "s3"
)

func (c *Cluster) check(ctx context.Context, s Server) error {
	switch s {
	case Cassandra:
		return c.store.Check(ctx)
	case Redis:
		return c.hot.Check(ctx)
	case Kafka:
		return c.log.Check(ctx)
	case ZooKeeper:
		return c.coord.Check(ctx)
	}
	return c.bucket.Check(ctx)
}

// Missing returns the names of those servers that do not answer now. It asks all at once, so that one which hangs hides no other.
func (c *Cluster) Missing(ctx context.Context, servers ...Server) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	answers := make([]error, len(servers))
	var asked sync.WaitGroup
	for i, s := range servers {
		asked.Go(func() { answers[i] = c.check(ctx, s) })
	}
	asked.Wait()
	for i, s := range servers {
		if answers[i] != nil {
			names = append(names, string(s))
		}
	}
	return names
}

// Migrate creates what the services need: the keyspace and its tables, a low-water mark for each partition, the topics, and the
// archive's bucket where that is allowed. It leaves alone what exists, so it may be run again.
func Migrate(ctx context.Context, cfg Config, migrations fs.FS, logger *slog.Logger) error {
	err := cassandra.Migrate(ctx, cfg.Cassandra, cfg.Replication, migrations)
	if errors.Is(err, cassandra.ErrReplication) {
		return fmt.Errorf("%w (%sCASSANDRA_REPLICATION is %s)", err, settings.Prefix, cfg.Replication)
	}
	if err != nil {
		return err
	}
	c, err := Open(ctx, cfg, logger, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	defer c.Close()
	if cfg.HistoryShards != nil {
		if err := c.store.SpreadHistory(ctx, *cfg.HistoryShards); err != nil {
			return err
		}
	}
	if !cfg.ForRestore {
		if err := c.store.SetUp(ctx, cfg.Partitions, job.Minute(time.Now())); err != nil {
			return err
		}
	}
	if err := c.EnsureTopics(ctx); err != nil {
		return fmt.Errorf("%w (%sKAFKA_REPLICATION is %d, %[2]sKAFKA_PARTITIONS %[4]d)", err, settings.Prefix, cfg.Kafka.Replication, cfg.Kafka.Partitions)
	}
	created := c.bucket.CreateBucket(ctx)
	if created == nil { // or it was there
		return nil
	}
	if there := c.bucket.Check(ctx); there != nil {
		return fmt.Errorf("the archive's bucket is not there and cannot be made: %w", errors.Join(created, there))
	}
	return nil
}
