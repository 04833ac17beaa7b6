package auditwriter

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/clock"
)

type metrics struct {
	recorded prometheus.Counter
	archived prometheus.Counter
	objects  prometheus.Counter
	lost     prometheus.Counter
	// oldest is when the oldest event that is not in the archive yet was appended to the log; zero if there is none.
	oldest atomic.Pointer[time.Time]
}

func newMetrics(reg prometheus.Registerer, clock clock.Clock) *metrics {
	m := &metrics{
		recorded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_audit_writer_recorded_events_total", Help: "Events written to the history.",
		}),
		archived: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_audit_writer_archived_events_total", Help: "Events written to the archive.",
		}),
		objects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_audit_writer_objects_total", Help: "Objects put into the archive.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_audit_writer_discarded_objects_total", Help: "Objects that another had put first.",
		}),
	}
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "minutehand_audit_writer_oldest_unarchived_age_seconds",
		Help: "Age of the oldest event consumed that is not in the archive yet; 0 if none.",
	}, func() float64 {
		if at := m.oldest.Load(); at != nil && !at.IsZero() {
			return clock.Since(*at).Seconds()
		}
		return 0
	})
	if reg != nil {
		reg.MustRegister(m.recorded, m.archived, m.objects, m.lost, age)
	}
	return m
}
