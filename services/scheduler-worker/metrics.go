package schedulerworker

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	dispatched prometheus.Counter
	refused    *prometheus.CounterVec
	late       *prometheus.CounterVec
	readAhead  prometheus.Gauge
	behind     prometheus.Histogram
	abandoned  prometheus.Counter
	postponed  prometheus.Counter
	parked     prometheus.Counter
	changes    prometheus.Counter
	overlaps   *prometheus.CounterVec
	heldBack   prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		dispatched: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_scheduler_worker_fires_total", Help: "Fires published.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "minutehand_scheduler_worker_refused_total", Help: "Entries that were not dispatched, by reason.",
		}, []string{"reason"}),
		late: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "minutehand_scheduler_worker_late_decisions_total",
			Help: "Missed-run decisions carried out, by whether the occurrence fires.",
		}, []string{"decision"}),
		readAhead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "minutehand_scheduler_worker_held_entries", Help: "Entries read ahead and held in memory.",
		}),
		behind: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "minutehand_scheduler_worker_publish_delay_seconds",
			Help:    "From the instant an entry is due to the instant its fire is durable.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600},
		}),
		abandoned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_scheduler_worker_dropped_holds_total",
			Help: "Times a shard dropped what it held because its last accepted read was too old.",
		}),
	}
	m.postponed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "minutehand_scheduler_worker_postponed_total",
		Help: "Times an entry was due while an operator held it, counted again every 10 s.",
	})
	m.parked = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "minutehand_scheduler_worker_parked_total",
		Help: "Entries that were attended to at their instant and wait in the hot buckets until their target has room.",
	})
	m.changes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "minutehand_scheduler_worker_changes_total", Help: "Events published of changes of jobs, tenants, keys and settings.",
	})
	m.overlaps = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "minutehand_scheduler_worker_overlaps_total",
		Help: "Occurrences at whose instant another execution of their job was in progress, by what was decided: skip, waits until that has ended, or displaces it.",
	}, []string{"decision"})
	m.heldBack = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "minutehand_scheduler_worker_held_back_lanes",
		Help: "Lanes, each of a target's host, of which more has been due for 30 s than executors have room for; a lane counts once for each shard.",
	})
	if reg != nil {
		reg.MustRegister(m.overlaps, m.heldBack, m.changes, m.parked, m.postponed, m.dispatched, m.refused, m.late, m.readAhead, m.behind, m.abandoned)
	}
	return m
}
