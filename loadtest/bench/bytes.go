package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/minutehand/minutehand/services/all-in-one/sizing"
)

// measureBytes measures what things take where they are kept, in an installation of its own, in which nothing is closed or compacted yet.
func measureBytes(ctx context.Context, target string) (bytes sizing.Bytes, err error) {
	err = withInstallation(ctx, target, fewPartitions, func(b *onServers) error {
		b.fleet.Variables = append(b.fleet.Variables, "MINUTEHAND_ARCHIVE_CLOSE_AFTER=10s")
		if err := b.fleet.StartAll(ctx, 1); err != nil {
			return err
		}
		small, hot, err := b.rest(ctx, 0.25)
		if err != nil {
			return err
		}
		large, _, err := b.rest(ctx, restingKB)
		if err != nil {
			return err
		}
		plain, err := b.load(ctx, sizing.Load{FiresPerSecond: middleRate})
		if err != nil {
			return err
		}
		heavy, err := b.load(ctx, sizing.Load{FiresPerSecond: middleRate, PayloadKB: fittedKB})
		if err != nil {
			return err
		}
		time.Sleep(15 * time.Second) // until objects are put
		archived, err := sizeOf(filepath.Join(b.state, "data", "s3", "buckets", b.config.Cassandra.Keyspace), ".parquet")
		if err != nil {
			return err
		}
		per := func(more, less float64) float64 { return tidy(max(more-less, 0) / fittedKB) }
		bytes = sizing.Bytes{
			CassandraPerJob: tidy(small), CassandraPerKB: tidy(max(large-small, 0) / (restingKB - 0.25)), RedisPerHotEntry: tidy(hot), RedisPerOutcome: packedOutcome, RedisPerClaim: claim,
			CassandraPerFire: tidy(plain.history), KafkaPerFire: tidy(plain.kafka), KafkaPerKB: per(heavy.kafka, plain.kafka),
			NetworkPerFire: tidy(plain.net), NetworkPerKB: per(heavy.net, plain.net), RedisNetworkShare: tidy(plain.redis / plain.net),
			S3PerFire: tidy(archived / (2 * middleRate * loadFor.Seconds())),
		}
		return nil
	})
	return bytes, err
}

// rest registers jobs that wait, and returns what each takes in Cassandra and in Redis.
func (b *onServers) rest(ctx context.Context, kb float64) (cold, hot float64, err error) {
	before, err := b.coldBytes(ctx, "")
	if err != nil {
		return 0, 0, err
	}
	info, err := b.redisInfo(ctx)
	if err != nil {
		return 0, 0, err
	}
	due := time.Now().Add(40 * time.Minute)
	jobs := make([]map[string]any, restingJobs)
	for i := range jobs {
		jobs[i] = map[string]any{
			"name": "bench", "type": "one_shot", "run_at": due.Add(time.Duration(i) * time.Millisecond).UTC().Format("2006-01-02T15:04:05.000Z"),
			"target": map[string]any{"kind": "http_webhook", "url": b.target + "/hook", "body": map[string]any{"text": text(kb)}},
		}
	}
	if err := b.api().registerJobs(ctx, jobs); err != nil {
		return 0, 0, err
	}
	time.Sleep(2 * time.Second)
	after, err := b.coldBytes(ctx, "")
	if err != nil {
		return 0, 0, err
	}
	later, err := b.redisInfo(ctx)
	return (after - before) / restingJobs, (later["used_memory"] - info["used_memory"]) / restingJobs, err
}

// onlyBytes measures what things take again, and leaves the rest of a file of costs as it is.
func onlyBytes(ctx context.Context, file string) error {
	target, _, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	c, err := sizing.Parse(text)
	if err != nil {
		return err
	}
	if c.Bytes, err = measureBytes(ctx, target); err != nil {
		return err
	}
	return write(file, &c)
}
