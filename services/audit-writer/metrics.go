package auditwriter

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	recorded prometheus.Counter
	archived prometheus.Counter
	objects  prometheus.Counter
	lost     prometheus.Counter
	age      prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
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
		age: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "minutehand_audit_writer_oldest_unarchived_age_seconds",
			Help: "Age of the oldest event consumed that is not in the archive yet; 0 if none.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.recorded, m.archived, m.objects, m.lost, m.age)
	}
	return m
}
