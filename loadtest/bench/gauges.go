package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// gauges are totals at one moment: CPU seconds, and bytes on disks and networks.
type gauges struct {
	cpu               map[string]float64
	kafka, net, redis float64
}

func (b *onServers) now(ctx context.Context) (g gauges, err error) {
	logs, err := filepath.Glob(filepath.Join(b.state, "data", "kafka", b.config.Cassandra.Keyspace+".*"))
	if err != nil {
		return g, err
	}
	for _, dir := range logs {
		segments, err := sizeOf(dir, ".log")
		if err != nil {
			return g, err
		}
		g.kafka += segments
	}
	dev, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		return g, err
	}
	if m := regexp.MustCompile(`lo:\s*(\d+)`).FindStringSubmatch(string(dev)); m != nil {
		g.net, _ = strconv.ParseFloat(m[1], 64)
	}
	info, err := b.redisInfo(ctx)
	if err != nil {
		return g, err
	}
	g.redis = info["total_net_input_bytes"] + info["total_net_output_bytes"]
	g.cpu, err = b.usage()
	return g, err
}

// redisInfo returns the numbers of INFO.
func (b *onServers) redisInfo(ctx context.Context) (map[string]float64, error) {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Getenv("REDIS_PORT")})
	defer func() { _ = c.Close() }()
	text, err := c.Info(ctx).Result()
	numbers := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			numbers[name] = n
		}
	}
	return numbers, err
}

// coldBytes returns what the tables take on disk whose names begin with a text, after everything in memory was written there.
func (b *onServers) coldBytes(ctx context.Context, tables string) (bytes float64, err error) {
	if out, err := exec.CommandContext(ctx, "infra/local/local", "nodetool", "1", "flush", b.config.Cassandra.Keyspace).CombinedOutput(); err != nil { //nolint:gosec // ours
		return 0, fmt.Errorf("flush: %w: %s", err, out)
	}
	folders, err := filepath.Glob(filepath.Join(b.state, "data", "cassandra-1-of-1", "data", b.config.Cassandra.Keyspace, tables+"*"))
	if err != nil {
		return 0, err
	}
	for _, folder := range folders {
		of, err := sizeOf(folder, "")
		if err != nil {
			return 0, err
		}
		bytes += of
	}
	return bytes, nil
}

// sizeOf returns the bytes of a folder's files with an ending.
func sizeOf(dir, ending string) (bytes float64, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ending) {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it was compacted away meanwhile
			}
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += float64(info.Size())
		}
		return nil
	})
	return bytes, err
}
