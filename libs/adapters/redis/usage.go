package redis

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// usageTimeout bounds how long a scrape waits for a server; it then omits what does not answer.
const usageTimeout = 2 * time.Second

// usage reports, at each scrape, the memory of every server that holds keys.
type usage struct{ tier *Tier }

// Usage returns a collector of how much memory the servers use, and how much they may use. A server without a bound of its own
// (maxmemory) may use the machine's.
func Usage(t *Tier) prometheus.Collector { return usage{t} }

func usageDescs() (used, limit *prometheus.Desc) {
	return prometheus.NewDesc("minutehand_hot_tier_memory_bytes", "Memory that a Redis server uses for keys.", []string{"server"}, nil),
		prometheus.NewDesc("minutehand_hot_tier_memory_limit_bytes", "Memory that a Redis server may use: maxmemory, or the machine's.", []string{"server"}, nil)
}

// Describe implements prometheus.Collector.
func (usage) Describe(ch chan<- *prometheus.Desc) {
	used, limit := usageDescs()
	ch <- used
	ch <- limit
}

// Collect implements prometheus.Collector.
func (u usage) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), usageTimeout)
	defer cancel()
	var mu sync.Mutex // servers of a cluster are asked side by side
	seen := map[string]bool{}
	_ = u.tier.masters(ctx, func(ctx context.Context, c *redis.Client) error { // whether servers answer is for /readyz
		info, err := c.Info(ctx, "memory").Result()
		if err != nil {
			return err
		}
		limit := infoNumber(info, "maxmemory")
		if limit == 0 {
			limit = infoNumber(info, "total_system_memory")
		}
		mu.Lock()
		defer mu.Unlock()
		server := c.Options().Addr
		if seen[server] {
			return nil
		}
		seen[server] = true
		usedDesc, limitDesc := usageDescs()
		ch <- prometheus.MustNewConstMetric(usedDesc, prometheus.GaugeValue, float64(infoNumber(info, "used_memory")), server)
		ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(limit), server)
		return nil
	})
}
