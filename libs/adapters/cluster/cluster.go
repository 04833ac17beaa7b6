package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/adapters/zookeeper"
	"github.com/minutehand/minutehand/libs/job"
)

// Cluster is a process's connections to the servers, as ports.
type Cluster struct {
	Jobs     *cassandra.JobStore
	Pending  *cassandra.Pending
	History  *cassandra.History
	Settings *cassandra.Settings
	Hot      *redis.HotBuckets
	Records  *redis.Records
	Log      *kafka.Log
	Coord    *zookeeper.Coordinator
	Archive  *s3.Archive

	store *cassandra.Store
	tier  *redis.Tier
}

// Open connects. Of the servers only Cassandra must answer for that.
func Open(ctx context.Context, cfg Config, logger *slog.Logger) (c *Cluster, err error) {
	c = &Cluster{}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if c.store, err = cassandra.Open(cfg.Cassandra); err != nil {
		return nil, err
	}
	cfg.Kafka.Logger, cfg.ZooKeeper.Logger = logger, logger
	if c.Log, err = kafka.Open(cfg.Kafka); err != nil {
		return nil, err
	}
	if c.Coord, err = zookeeper.Open(cfg.ZooKeeper); err != nil {
		return nil, err
	}
	if c.Archive, err = s3.NewArchive(ctx, cfg.S3); err != nil {
		return nil, err
	}
	c.tier = redis.Open(cfg.Redis)
	c.Hot, c.Records = redis.NewHotBuckets(c.tier), redis.NewRecords(c.tier)
	c.Jobs, c.Pending = cassandra.NewJobStore(c.store), cassandra.NewPending(c.store)
	c.History, c.Settings = cassandra.NewHistory(c.store), cassandra.NewSettings(c.store)
	return c, nil
}

// Close ends the connections.
func (c *Cluster) Close() {
	if c.Hot != nil {
		_, _ = c.Hot.Close(), c.tier.Close()
	}
	if c.Coord != nil {
		_ = c.Coord.Close()
	}
	if c.Log != nil {
		c.Log.Close()
	}
	if c.store != nil {
		c.store.Close()
	}
}

// checkTimeout bounds the question whether a server answers.
const checkTimeout = 2 * time.Second

// Missing names the servers that do not answer now.
func (c *Cluster) Missing(ctx context.Context) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for _, s := range []struct {
		name  string
		check func(context.Context) error
	}{
		{"cassandra", c.store.Check}, {"redis", c.tier.Check}, {"kafka", c.Log.Check}, {"zookeeper", c.Coord.Check}, {"s3", c.Archive.Check},
	} {
		if s.check(ctx) != nil {
			names = append(names, s.name)
		}
	}
	return names
}

// Migrate makes what the services need: the keyspace and its tables, a low-water mark for each partition, the topics, and the
// archive's bucket where that is allowed. What is there stays, so it may be run again.
func Migrate(ctx context.Context, cfg Config, migrations fs.FS, logger *slog.Logger) error {
	if err := cassandra.Migrate(ctx, cfg.Cassandra, cfg.Replication, migrations); err != nil {
		return err
	}
	c, err := Open(ctx, cfg, logger)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.store.SetUp(ctx, cfg.Partitions, job.Minute(time.Now())); err != nil {
		return err
	}
	if err := c.Log.EnsureTopics(ctx); err != nil {
		return err
	}
	if created, there := c.Archive.CreateBucket(ctx), c.Archive.Check(ctx); there != nil {
		return fmt.Errorf("the archive's bucket is not there and cannot be made: %w", errors.Join(created, there))
	}
	return nil
}
