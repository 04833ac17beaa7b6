package bucketloader

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/services/bucket-loader/internal/bulk"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/forecast"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/schedules"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/tell"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/watch"
)

type metrics struct {
	staged     prometheus.Counter
	putBack    prometheus.Counter
	closed     prometheus.Counter
	candidates prometheus.Gauge
	oldestOpen prometheus.Gauge
	oldestDue  prometheus.Gauge
	schedules  *schedules.Metrics
	operations *bulk.Metrics
	forecast   *forecast.Metrics
	watch      *watch.Metrics
	tell       *tell.Metrics
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		schedules: schedules.NewMetrics(reg), operations: bulk.NewMetrics(reg), forecast: forecast.NewMetrics(reg), watch: watch.NewMetrics(reg), tell: tell.NewMetrics(reg),
		staged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_bucket_loader_staged_entries_total", Help: "Entries added to hot buckets by staging.",
		}),
		putBack: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_bucket_loader_put_back_entries_total", Help: "Entries put back into hot buckets.",
		}),
		closed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_bucket_loader_closed_minutes_total", Help: "Minutes by which low-water marks moved.",
		}),
		candidates: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "minutehand_bucket_loader_put_back_candidates", Help: "Entries that wait for their put-back.",
		}),
		oldestOpen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "minutehand_bucket_loader_oldest_open_bucket_age_seconds",
			Help: "Age of the oldest minute bucket that is not closed.",
		}),
		oldestDue: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "minutehand_bucket_loader_oldest_entry_not_done_age_seconds",
			Help: "How long ago the oldest entry that is not done was due, at the last closing sweep; 0 if none.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.staged, m.putBack, m.closed, m.candidates, m.oldestOpen, m.oldestDue)
	}
	return m
}

// observeOldest sets the metric of the oldest entry that was still open in the last sweeps.
func (s *Service) observeOldest(now time.Time) {
	age := 0.0
	for _, other := range s.partitions {
		if !other.oldestDue.IsZero() {
			age = max(age, now.Sub(other.oldestDue).Seconds())
		}
	}
	s.metrics.oldestDue.Set(age)
}
