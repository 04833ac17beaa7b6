package admin

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/dispatch"
)

// lagTimeout bounds how long a scrape waits for the log; it then omits a group that it knows nothing about.
const lagTimeout = 2 * time.Second

type lag struct {
	log    dispatch.Log
	groups []string
}

// Lag reports, at each scrape, how many records of the log each group still has before it.
func Lag(log dispatch.Log, groups ...string) prometheus.Collector { return lag{log, groups} }

func lagDesc() *prometheus.Desc {
	return prometheus.NewDesc("minutehand_log_lag_records", "Records behind a group's committed position.",
		[]string{"topic", "group"}, nil)
}

// Describe implements prometheus.Collector.
func (lag) Describe(ch chan<- *prometheus.Desc) { ch <- lagDesc() }

// Collect implements prometheus.Collector.
func (l lag) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), lagTimeout)
	defer cancel()
	for _, g := range l.groups {
		topic := dispatch.TopicOf(g)
		end, err := l.log.End(ctx, topic)
		if err != nil {
			continue
		}
		committed, err := l.log.Committed(ctx, topic, g)
		if err != nil || committed.LogID != end.LogID {
			continue
		}
		var behind int64
		for p, offset := range end.Offsets {
			behind += offset - committed.Offsets[p]
		}
		ch <- prometheus.MustNewConstMetric(lagDesc(), prometheus.GaugeValue, float64(behind), topic, g)
	}
}
