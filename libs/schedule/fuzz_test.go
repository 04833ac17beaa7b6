package schedule_test

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

func FuzzCompile(f *testing.F) {
	for _, expr := range []string{
		"* * * * *", "*/5 * * * * *", "0 0 0 29 2 ? 2000-2199/4", "0 22-2/2 L-3 NOV-FEB FRI#3", "0 0 15W * ?", "0 0 LW * ?", "0 9 30 * MONL",
		"0 0 */28 2 1#5", "15 2,3 * * 0-7", "@daily", "H/15 * * * *", "H H(22-2) H * ?", "h H/2 H(0-29)/10 H(1-31) H H(5-7)", "H,*/7 H,H(9-17)/3 H/9,L H(NOV-FEB) H/2,5#3", "0 0 31 H *",
		"0 0 0 1 1 ? H", "H() * * * *", "TZ=UTC * * * * *", "*/0 * * * *", "1,,2 * * * *", "5- * * * *", "\u00a0* * * *",
	} {
		f.Add(expr, uint8(0), int64(1_700_000_000_000))
	}
	zones := []string{"UTC", "America/New_York", "Europe/Dublin", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Africa/Casablanca", "Africa/Monrovia"}
	f.Fuzz(func(t *testing.T, expr string, choice uint8, ms int64) {
		s := cron(expr, zones[choice%8])
		s.DST.Gap = []job.GapPolicy{job.GapNextValid, job.GapSkip}[choice>>3%2]
		s.DST.Fold = []job.FoldPolicy{job.FoldFirst, job.FoldLast, job.FoldBoth, ""}[choice>>4%4]
		s.Jitter = time.Duration(choice) * time.Second
		started := time.Now()
		p, err := schedule.Compile(s, expr)
		if spent := time.Since(started); spent > time.Second { // no limit to rely on, only a net for runaway loops
			t.Fatalf("Compile took %v", spent)
		}
		if err != nil {
			return
		}
		text, err := schedule.Describe(s, expr)
		checkSentence(t, s, text, err)
		first, ok := p.First(time.Time{})
		if !ok {
			t.Fatal("it compiles and never fires")
		}
		if n := p.Count(first, first.Add(time.Hour), 5); n < 1 {
			t.Fatalf("Count from the first on is %d", n)
		}
		at := time.UnixMilli(ms)
		for range 20 {
			next, ok := p.Next(at)
			if !ok {
				break
			}
			if !next.After(at) {
				t.Fatalf("Next(%v) = %v", at, next)
			}
			if after, ok := p.Next(next); ok {
				if back, ok := p.Prev(after); !ok || back != next {
					t.Fatalf("Prev(%v) = %v, want %v", after, back, next)
				}
				if fire := p.ScheduledFor(next); fire.Before(next) || !fire.Before(after) {
					t.Fatalf("ScheduledFor(%v) = %v, and the next is %v", next, fire, after)
				}
			}
			at = next
		}
		if list := p.Preview(first.Add(-1), 1); len(list) != 1 || list[0].At != first {
			t.Fatalf("Preview = %v, First = %v", list, first)
		}
	})
}
