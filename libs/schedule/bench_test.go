package schedule_test

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

func BenchmarkNext(b *testing.B) {
	for _, test := range []struct{ name, expr, zone string }{
		{"every minute", "* * * * *", "UTC"},
		{"daily", "30 2 * * *", "America/New_York"},
		{"weekdays", "0 9-17 * * MON-FRI", "Europe/London"},
		{"last weekday of the month", "0 0 LW * *", "America/New_York"},
		{"leap day", "0 0 29 2 *", "America/New_York"},
		{"leap day on a fifth Monday", "0 0 */28 2 1#5", "America/New_York"},
	} {
		b.Run(test.name, func(b *testing.B) {
			p := compile(b, cron(test.expr, test.zone))
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			at := start
			b.ReportAllocs()
			for b.Loop() {
				next, ok := p.Next(at)
				if !ok {
					next = start
				}
				at = next
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, test := range []struct{ name, expr string }{
		{"daily", "30 2 * * *"},
		{"impossible date", "0 0 30 2 *"},
	} {
		b.Run(test.name, func(b *testing.B) {
			s := job.Schedule{Type: job.ScheduleCron, CronExpr: test.expr, Timezone: "America/New_York"}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = schedule.Compile(s, "job-1")
			}
		})
	}
}
