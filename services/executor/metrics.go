package executor

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/job"
)

type metrics struct {
	lateness    [job.Precisions]prometheus.Observer
	outcomes    *prometheus.CounterVec
	deferred    prometheus.Counter
	duplicates  prometheus.Counter
	refused     prometheus.Counter
	asked       prometheus.Counter
	running     prometheus.Gauge
	waiting     prometheus.Gauge
	uncommitted prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "minutehand_executor_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "minutehand_executor_" + name, Help: help})
	}
	lateness := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "minutehand_executor_lateness_seconds",
		Help: "Start of the first attempt's invocation minus scheduled_for, trigger schedule, by the job's precision.",
		Buckets: []float64{
			.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5, 10, 30, 60, 600, 3600,
		},
	}, []string{"precision"})
	m := &metrics{
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "minutehand_executor_outcomes_total", Help: "Attempts that ended, by outcome.",
		}, []string{"outcome"}),
		deferred:    counter("deferred_total", "Fires deferred because their host's queue was full or too slow."),
		duplicates:  counter("duplicate_fires_total", "Fires whose attempt had a lease or an outcome already."),
		refused:     counter("refused_total", "Fires refused by the last check."),
		asked:       counter("asked_total", "Fires for which settlers and rows were asked."),
		running:     gauge("running_invocations", "Invocations under way."),
		waiting:     gauge("waiting_fires", "Fires that wait for their host."),
		uncommitted: gauge("uncommitted_fires", "Fires consumed behind the committed position."),
	}
	for p := range job.Precisions {
		m.lateness[p] = lateness.WithLabelValues(p.String())
	}
	if reg != nil {
		reg.MustRegister(lateness, m.outcomes, m.deferred, m.duplicates, m.refused, m.asked, m.running, m.waiting,
			m.uncommitted)
	}
	return m
}
