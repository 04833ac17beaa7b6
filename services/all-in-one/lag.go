package platform

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/dispatch"
)

// lag tells, at each scrape, how many records of the log each group has still before it.
type lag struct{ log dispatch.Log }

func lagDesc() *prometheus.Desc {
	return prometheus.NewDesc("minutehand_log_lag_records", "Records behind a group's committed position.",
		[]string{"topic", "group"}, nil)
}

// Describe implements prometheus.Collector.
func (lag) Describe(ch chan<- *prometheus.Desc) { ch <- lagDesc() }

// Collect implements prometheus.Collector.
func (l lag) Collect(ch chan<- prometheus.Metric) {
	for _, tg := range [][2]string{
		{dispatch.TopicFires, dispatch.GroupExecutor},
		{dispatch.TopicEvents, dispatch.GroupSettle},
		{dispatch.TopicEvents, dispatch.GroupHistory},
		{dispatch.TopicEvents, dispatch.GroupArchive},
	} {
		end, err := l.log.End(context.Background(), tg[0])
		if err != nil {
			continue
		}
		committed, err := l.log.Committed(context.Background(), tg[0], tg[1])
		if err != nil {
			continue
		}
		var behind int64
		for p, offset := range end.Offsets {
			behind += offset - committed.Offsets[p]
		}
		ch <- prometheus.MustNewConstMetric(lagDesc(), prometheus.GaugeValue, float64(behind), tg[0], tg[1])
	}
}
