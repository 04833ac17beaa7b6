package schedule_test

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

func TestPreviewExplainsJumps(t *testing.T) {
	const newYork = "America/New_York"
	tests := []struct {
		name, expr, zone string
		fold             job.FoldPolicy
		after            string
		local, note      string
	}{
		{"ordinary day", "30 2 * * *", newYork, "", "2024-03-10T12:00:00Z", "2024-03-11 02:30:00 -0400", ""},
		{
			"gap", "30 2 * * *", newYork, "", "2024-03-09T12:00:00Z", "2024-03-10 03:30:00 -0400",
			"02:30 does not exist on this day in America/New_York; fires at 03:30",
		},
		{
			"gap with seconds", "15 30 2 * * *", newYork, "", "2024-03-09T12:00:00Z", "2024-03-10 03:30:15 -0400",
			"02:30:15 does not exist on this day in America/New_York; fires at 03:30:15",
		},
		{
			"gap that meets the next hour", "0 2,3 * * *", newYork, "", "2024-03-09T12:00:00Z", "2024-03-10 03:00:00 -0400",
			"02:00 does not exist on this day in America/New_York; fires at 03:00, as one occurrence with that time's own",
		},
		{"time just after the gap", "30 3 * * *", newYork, "", "2024-03-09T12:00:00Z", "2024-03-10 03:30:00 -0400", ""},
		{
			"missing day", "0 9 30 * *", "Pacific/Apia", "", "2011-12-01T00:00:00Z", "2011-12-31 09:00:00 +1400",
			"2011-12-30 09:00 does not exist in Pacific/Apia; fires at 2011-12-31 09:00",
		},
		{"rhythm after the gap", "*/30 * * * *", newYork, "", "2024-03-10T06:59:00Z", "2024-03-10 03:00:00 -0400", ""},
		{
			"fold first", "30 1 * * *", newYork, "", "2024-11-02T12:00:00Z", "2024-11-03 01:30:00 -0400",
			"01:30 occurs twice on this day in America/New_York; fires the first time",
		},
		{
			"fold last", "30 1 * * *", newYork, job.FoldLast, "2024-11-02T12:00:00Z", "2024-11-03 01:30:00 -0500",
			"01:30 occurs twice on this day in America/New_York; fires the second time",
		},
		{
			"fold both, first", "30 1 * * *", newYork, job.FoldBoth, "2024-11-02T12:00:00Z", "2024-11-03 01:30:00 -0400",
			"01:30 occurs twice on this day in America/New_York; fires both times, this is the first",
		},
		{
			"fold both, second", "30 1 * * *", newYork, job.FoldBoth, "2024-11-03T05:30:00Z", "2024-11-03 01:30:00 -0500",
			"01:30 occurs twice on this day in America/New_York; fires both times, this is the second",
		},
		{
			"rhythm in the fold", "0 * * * *", newYork, "", "2024-11-03T05:30:00Z", "2024-11-03 01:00:00 -0500",
			"01:00 occurs twice on this day in America/New_York; fires both times, this is the second",
		},
		{"just after the fold", "0 2 * * *", newYork, "", "2024-11-02T12:00:00Z", "2024-11-03 02:00:00 -0500", ""},
	}
	for _, test := range tests {
		s := cron(test.expr, test.zone)
		s.DST.Fold = test.fold
		list := compile(t, s).Preview(utc(t, test.after), 1)
		if len(list) != 1 {
			t.Fatalf("%s: %v", test.name, list)
		}
		o := list[0]
		if local := o.Local.Format("2006-01-02 15:04:05 -0700"); local != test.local || o.Note != test.note || !o.At.Equal(o.Local) || o.At.Location() != time.UTC {
			t.Errorf("%s: at %v, local %s, note %q", test.name, o.At, local, o.Note)
		}
	}
}

func TestPreviewEndsWithTheSchedule(t *testing.T) {
	at := utc(t, "2026-01-01T00:00:00Z")
	p := compile(t, job.Schedule{Type: job.ScheduleInterval, Every: time.Hour, StartAt: at, EndAt: at.Add(150 * time.Minute), Timezone: "Asia/Kathmandu"})
	list := p.Preview(at, 10)
	if len(list) != 2 || list[1].At != at.Add(2*time.Hour) || list[1].Local.Format("15:04") != "07:45" {
		t.Errorf("Preview = %v", list)
	}
	for _, n := range []int{0, -1} {
		if list := p.Preview(at, n); len(list) != 0 {
			t.Errorf("Preview of %d = %v", n, list)
		}
	}
}
