package retrymanager

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	settled     prometheus.Counter
	retries     prometheus.Counter
	deadLetters prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		settled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_retry_manager_events_total", Help: "Events settled.",
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_retry_manager_retries_total", Help: "Further attempts scheduled.",
		}),
		deadLetters: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_retry_manager_dead_letters_total", Help: "Executions given up.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.settled, m.retries, m.deadLetters)
	}
	return m
}
