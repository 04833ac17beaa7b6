package retrymanager

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// maxHosts bounds the hosts that have a series of their own; the dead letters of others are counted under otherHosts.
const (
	maxHosts   = 200
	otherHosts = "other"
)

type metrics struct {
	settled     prometheus.Counter
	retries     prometheus.Counter
	deadLetters prometheus.Counter
	byHost      *prometheus.CounterVec
	followed    prometheus.Counter
	chainsCut   prometheus.Counter

	mu    sync.Mutex
	hosts map[string]bool // those with a series of their own
}

// gaveUp counts a dead letter of a target on a host.
func (m *metrics) gaveUp(host string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.hosts[host] {
		if len(m.hosts) >= maxHosts {
			host = otherHosts
		} else {
			m.hosts[host] = true
		}
	}
	m.deadLetters.Inc()
	m.byHost.WithLabelValues(host).Inc()
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		hosts: map[string]bool{},
		settled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_retry_manager_events_total", Help: "Events settled.",
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_retry_manager_retries_total", Help: "Further attempts scheduled.",
		}),
		deadLetters: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_retry_manager_dead_letters_total", Help: "Executions given up.",
		}),
		byHost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "minutehand_retry_manager_dead_letters_by_host_total", Help: "Executions given up, by host of the target; those of the 201st host and further ones under \"other\".",
		}, []string{"host"}),
		followed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_retry_manager_dependents_total", Help: "Executions of jobs that follow others, written because what they follow has ended.",
		}),
		chainsCut: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_retry_manager_chains_cut_total", Help: "Executions that nothing follows any more, because 100 have followed one another: the jobs follow each other in a circle.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.settled, m.retries, m.deadLetters, m.byHost, m.followed, m.chainsCut)
	}
	return m
}
