package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

func TestOneShotHasOneInstant(t *testing.T) {
	at := utc(t, "2026-03-01T10:00:00.5Z")
	p := compile(t, job.Schedule{Type: job.ScheduleOneShot, RunAt: at.In(time.FixedZone("", 3600)).Add(999 * time.Microsecond)})
	if got, ok := p.First(at); !ok || got != at {
		t.Errorf("First(at) = %v, %v", got, ok)
	}
	if got, ok := p.Next(at.Add(-time.Nanosecond)); !ok || got != at {
		t.Errorf("Next(just before) = %v, %v", got, ok)
	}
	if got, ok := p.Next(at); ok {
		t.Errorf("Next(at) = %v", got)
	}
	if got, ok := p.Prev(at.Add(time.Nanosecond)); !ok || got != at {
		t.Errorf("Prev(just after) = %v, %v", got, ok)
	}
	if got, ok := p.Prev(at); ok {
		t.Errorf("Prev(at) = %v", got)
	}
	if n := p.Count(at, at.Add(1), 5); n != 1 {
		t.Errorf("Count = %d", n)
	}
}

func TestIntervalIsAnchoredAtItsStart(t *testing.T) {
	start := utc(t, "2026-03-01T10:00:00.25Z")
	p := compile(t, job.Schedule{Type: job.ScheduleInterval, Every: 15 * time.Minute, StartAt: start, EndAt: start.Add(time.Hour), Timezone: "America/New_York"})
	got := between(t, p, start.Add(-24*time.Hour), start.Add(24*time.Hour))
	want := []time.Time{start, start.Add(15 * time.Minute), start.Add(30 * time.Minute), start.Add(45 * time.Minute)}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if at, _ := p.First(start.Add(1)); at != want[1] {
		t.Errorf("First(start + 1ns) = %v", at)
	}
	if at, _ := p.Prev(want[1].Add(1)); at != want[1] {
		t.Errorf("Prev(second + 1ns) = %v", at)
	}
}

func TestCountOfAnIntervalTakesNoStepPerInstant(t *testing.T) {
	start := utc(t, "1970-01-01T00:00:00Z")
	p := compile(t, job.Schedule{Type: job.ScheduleInterval, Every: time.Second, StartAt: start})
	if n := p.Count(time.Time{}, utc(t, "9999-01-01T00:00:00Z"), 1<<62); n != 7258118400 {
		t.Errorf("Count = %d, want the seconds of 1970 to 2199", n)
	}
	if n := p.Count(start, start.Add(time.Hour), 60); n != 60 {
		t.Errorf("Count stops at %d, want 60", n)
	}
}

func TestCountStopsAtItsLimit(t *testing.T) {
	p := compile(t, cron("* * * * *", ""))
	from := utc(t, "2026-01-01T00:00:00Z")
	for _, test := range []struct {
		length time.Duration
		limit  int
		want   int
	}{{time.Hour, 100, 60}, {time.Hour, 60, 60}, {200 * 365 * 24 * time.Hour, 7, 7}, {time.Hour, 0, 0}, {time.Hour, -1, 0}, {0, 5, 0}, {-time.Hour, 5, 0}, {1, 5, 1}} {
		if n := p.Count(from, from.Add(test.length), test.limit); n != test.want {
			t.Errorf("Count over %v up to %d = %d, want %d", test.length, test.limit, n, test.want)
		}
	}
}

func TestLimitsIncludeTheStartAndExcludeTheEnd(t *testing.T) {
	s := cron("0 0 * * *", "")
	s.StartAt, s.EndAt = utc(t, "2026-01-02T00:00:00Z"), utc(t, "2026-01-04T00:00:00Z")
	got := between(t, compile(t, s), utc(t, "1970-01-01T00:00:00Z"), utc(t, "2199-12-31T00:00:00Z"))
	if fmt.Sprint(got) != fmt.Sprint([]time.Time{s.StartAt, utc(t, "2026-01-03T00:00:00Z")}) {
		t.Errorf("got %v", got)
	}
	s.StartAt, s.EndAt = s.StartAt.Add(time.Millisecond), s.StartAt.Add(time.Hour)
	if at, ok := compile(t, s).First(time.Time{}); ok {
		t.Errorf("limits without an occurrence between them have %v", at)
	}
}

func TestYearsEndAt2199(t *testing.T) {
	for _, zone := range []string{"UTC", "Pacific/Kiritimati", "America/New_York", "Pacific/Pago_Pago"} {
		p := compile(t, cron("* * * * *", zone))
		if at, ok := p.First(time.Time{}); !ok || at != utc(t, "1970-01-01T00:00:00Z") && zone == "UTC" || at.Year() != 1970 {
			t.Errorf("%s: the first is %v", zone, at)
		}
		end, ok := p.Prev(utc(t, "9999-01-01T00:00:00Z"))
		if !ok || end.Year() != 2199 {
			t.Errorf("%s: the last is %v, %v", zone, end, ok)
		}
		if at, ok := p.Next(end); ok {
			t.Errorf("%s: after the last comes %v", zone, at)
		}
		for _, far := range []time.Time{utc(t, "2200-01-01T00:00:00Z"), utc(t, "9999-01-01T00:00:00Z"), time.Unix(1<<60, 0)} {
			if at, ok := p.Next(far); ok {
				t.Errorf("%s: Next(%v) = %v", zone, far, at)
			}
		}
		for _, early := range []time.Time{{}, utc(t, "1970-01-01T00:00:00Z"), time.Unix(-1<<60, 0)} {
			if at, ok := p.Prev(early); ok {
				t.Errorf("%s: Prev(%v) = %v", zone, early, at)
			}
		}
	}
}

func TestJitterIsFixedPerJobAndStaysBeforeTheNext(t *testing.T) {
	minutely := cron("* * * * *", "")
	minutely.Jitter = 30 * time.Second
	crowded := minutely
	crowded.Jitter = time.Hour
	nominal := utc(t, "2026-01-01T00:00:00Z")
	offsets, squeezed := map[time.Duration]bool{}, map[time.Duration]bool{}
	for i := range 500 {
		id := fmt.Sprintf("job-%d", i)
		p, err := schedule.Compile(minutely, id)
		if err != nil {
			t.Fatal(err)
		}
		offset := p.ScheduledFor(nominal).Sub(nominal)
		if offset < 0 || offset >= minutely.Jitter || offset%time.Millisecond != 0 {
			t.Fatalf("%s: offset %v", id, offset)
		}
		if later := nominal.Add(time.Hour); p.ScheduledFor(later).Sub(later) != offset {
			t.Fatalf("%s: the offset changes", id)
		}
		offsets[offset] = true

		q, err := schedule.Compile(crowded, id)
		if err != nil {
			t.Fatal(err)
		}
		squeezed[q.ScheduledFor(nominal).Sub(nominal)] = true
		if next, _ := q.Next(nominal); !q.ScheduledFor(nominal).Before(next) {
			t.Fatalf("%s: %v is not before %v", id, q.ScheduledFor(nominal), next)
		}
	}
	if len(offsets) < 450 || len(squeezed) < 450 {
		t.Errorf("500 jobs share %d and %d offsets", len(offsets), len(squeezed))
	}
	if got := compile(t, cron("* * * * *", "")).ScheduledFor(nominal); got != nominal {
		t.Errorf("without jitter: %v", got)
	}
}

// Stored jobs depend on it: another hash would move every jittered occurrence on an upgrade.
func TestJitterDoesNotChangeBetweenVersions(t *testing.T) {
	s := cron("0 0 * * *", "")
	s.Jitter = time.Hour
	nominal := utc(t, "2026-01-01T00:00:00Z")
	if got := compile(t, s).ScheduledFor(nominal).Sub(nominal); got != 1743606*time.Millisecond {
		t.Errorf("offset of job-1 = %v", got)
	}
}

func TestWrongSchedulesNameTheField(t *testing.T) {
	at := utc(t, "2026-01-01T00:00:00Z")
	daily := cron("@daily", "")
	with := func(s job.Schedule, change func(*job.Schedule)) job.Schedule {
		change(&s)
		return s
	}
	interval := job.Schedule{Type: job.ScheduleInterval, Every: time.Minute, StartAt: at}
	tests := []struct {
		fields string
		s      job.Schedule
	}{
		{"type", job.Schedule{}},
		{"type", job.Schedule{Type: "hourly"}},
		{"run_at", job.Schedule{Type: job.ScheduleOneShot}},
		{"run_at", job.Schedule{Type: job.ScheduleOneShot, RunAt: utc(t, "1969-12-31T23:59:59Z")}},
		{"run_at", job.Schedule{Type: job.ScheduleOneShot, RunAt: utc(t, "2200-01-01T00:00:00Z")}},
		{"run_at", job.Schedule{Type: job.ScheduleOneShot, RunAt: at, StartAt: at.Add(time.Second)}},
		{"run_at", job.Schedule{Type: job.ScheduleOneShot, RunAt: at, EndAt: at}},
		{"every start_at", job.Schedule{Type: job.ScheduleInterval}},
		{"every", with(interval, func(s *job.Schedule) { s.Every = time.Second - 1 })},
		{"every", with(interval, func(s *job.Schedule) { s.Every = -time.Hour })},
		{"every", with(interval, func(s *job.Schedule) { s.Every = time.Second + 1 })},
		{"start_at", with(interval, func(s *job.Schedule) { s.StartAt = utc(t, "1969-12-31T23:59:59Z") })},
		{"cron_expr", with(interval, func(s *job.Schedule) { s.CronExpr = "@daily" })},
		{"cron_expr", with(daily, func(s *job.Schedule) { s.CronExpr = "" })},
		{"run_at", with(daily, func(s *job.Schedule) { s.RunAt = at })},
		{"every", with(daily, func(s *job.Schedule) { s.Every = time.Hour })},
		{"end_at", with(daily, func(s *job.Schedule) { s.StartAt, s.EndAt = at, at })},
		{"end_at", with(daily, func(s *job.Schedule) { s.EndAt = utc(t, "1969-12-31T00:00:00Z") })},
		{"start_at", with(daily, func(s *job.Schedule) { s.StartAt = utc(t, "2200-01-01T00:00:00Z") })},
		{"max_occurrences", with(daily, func(s *job.Schedule) { s.MaxOccurrences = -1 })},
		{"jitter", with(daily, func(s *job.Schedule) { s.Jitter = -time.Second })},
		{"jitter", with(daily, func(s *job.Schedule) { s.Jitter = 1 })},
		{"jitter", with(daily, func(s *job.Schedule) { s.Jitter = 1 << 62 })},
		{"timezone", with(daily, func(s *job.Schedule) { s.Timezone = "Local" })},
		{"timezone", with(daily, func(s *job.Schedule) { s.Timezone = "../Europe/Berlin" })},
		{"dst/gap", with(daily, func(s *job.Schedule) { s.DST.Gap = "first" })},
		{"dst/fold", with(daily, func(s *job.Schedule) { s.DST.Fold = "skip" })},
	}
	for _, test := range tests {
		var fields []string
		for _, fault := range faultsOf(t, test.s) {
			fields = append(fields, fault.Field)
		}
		if got := strings.Join(fields, " "); got != test.fields {
			t.Errorf("%+v: faults in %q, want %q", test.s, got, test.fields)
		}
	}
	compile(t, with(daily, func(s *job.Schedule) { s.EndAt = utc(t, "9999-12-31T23:59:59Z") }))
}

func TestSpreadMovesWhatIsAtAFullHourOnly(t *testing.T) {
	s := cron("0,30 9-11 * * *", "Asia/Kolkata") // 03:30, 04:00 … UTC
	s.Spread = 10 * time.Minute
	moved := map[time.Duration]bool{}
	for i := range 300 {
		p, err := schedule.Compile(s, fmt.Sprint("job_", i))
		if err != nil {
			t.Fatal(err)
		}
		var by []time.Duration
		for _, at := range between(t, p, utc(t, "2026-03-01T00:00:00Z"), utc(t, "2026-03-03T00:00:00Z")) {
			d := p.ScheduledFor(at).Sub(at)
			switch {
			case at.Minute() != 0 && d != 0:
				t.Fatalf("%s was moved by %v", at, d)
			case at.Minute() == 0:
				by = append(by, d)
			}
		}
		for _, d := range by {
			if d != by[0] || d < 0 || d >= 10*time.Minute {
				t.Fatalf("moved by %v", by)
			}
		}
		moved[by[0].Truncate(time.Minute)] = true
	}
	if len(moved) != 10 {
		t.Errorf("300 jobs lie in %d of 10 minutes", len(moved))
	}
}
