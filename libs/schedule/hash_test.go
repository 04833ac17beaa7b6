package schedule_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// firstOf returns the first n occurrences for a job from the start of 2024 on.
func firstOf(t testing.TB, expr, jobID, layout string, n int) string {
	t.Helper()
	p, err := schedule.Compile(cron(expr, ""), jobID)
	if err != nil {
		t.Fatalf("Compile(%q, %q): %v", expr, jobID, err)
	}
	var list []string
	for _, o := range p.Preview(utc(t, "2023-12-31T23:59:59Z"), n) {
		list = append(list, o.At.Format(layout))
	}
	return strings.Join(list, " ")
}

// Stored jobs depend on it: another hash would move every job that uses H on an upgrade.
func TestHashDoesNotChangeBetweenVersions(t *testing.T) {
	tests := []struct{ expr, jobID, layout, want string }{
		{"H H * * *", "job-1", "0102 1504", "0101 1935 0102 1935 0103 1935"},
		{"H H * * *", "", "0102 1504", "0101 2348 0102 2348 0103 2348"},
		{"H H * * *", "0198a2c4-7b1e-7c3a-9f00-5d2e8c4b6a71", "0102 1504", "0101 1109 0102 1109 0103 1109"},
		{"H H H H H ?", "job-1", "0102 150405", "0810 193541 0810 193541 0810 193541"},
		{"0 0 H * ?", "job-1", "0102", "0110 0210 0310"},
		{"0 0 ? * H", "job-1", "Mon", "Thu Thu Thu"},
		{"H/15 * * * *", "job-1", "1504", "0005 0020 0035"},
		{"H(0-29)/10 H(22-2) * * *", "job-1", "0102 1504", "0101 0205 0101 0215 0101 0225"},
		{"0 0 1 H ?", "job-1", "0102", "0801 0801 0801"},
	}
	for _, test := range tests {
		if got := firstOf(t, test.expr, test.jobID, test.layout, 3); got != test.want {
			t.Errorf("%q of %q: %s, want %s", test.expr, test.jobID, got, test.want)
		}
	}
}

func TestHashSpreadsJobsOverTheField(t *testing.T) {
	for _, test := range []struct {
		expr, layout          string
		values, least, atMost int
	}{
		{"H 0 * * *", "04", 60, 100, 250},
		{"H 0 0 * * *", "05", 60, 100, 250},
		{"0 H * * *", "15", 24, 320, 520},
		{"0 0 H * ?", "02", 28, 270, 450},
		{"0 0 1 H ?", "01", 12, 700, 970},
		{"0 0 ? * H", "Mon", 7, 1280, 1580},
		{"H(0-29) 0 * * *", "04", 30, 250, 420},
		{"H/15 * * * *", "04", 15, 560, 780},
		{"0 0 H(30-2) * *", "02", 4, 2300, 2700},
		{"0 0 ? * H(0-7)", "Mon", 7, 1280, 1580}, // Sunday is not there twice
	} {
		counts := map[string]int{}
		for i := range 10_000 {
			counts[firstOf(t, test.expr, fmt.Sprintf("job-%d", i), test.layout, 1)]++
		}
		if len(counts) != test.values {
			t.Errorf("%s: %d values, want %d", test.expr, len(counts), test.values)
		}
		for value, n := range counts {
			if n < test.least || n > test.atMost {
				t.Errorf("%s: %s for %d of 10000 jobs", test.expr, value, n)
			}
		}
	}
}

// Jobs that share a minute must not share an hour, or a full hour's load would arrive in one minute.
func TestHashDiffersFromFieldToField(t *testing.T) {
	pairs := map[string]int{}
	for i := range 10_000 {
		pairs[firstOf(t, "H H * * *", fmt.Sprint(i), "1504", 1)]++
	}
	// Of 1440 pairs, 10,000 independent draws leave about 1.4 out.
	if len(pairs) < 1430 {
		t.Errorf("10000 jobs share %d of 1440 minutes of the day", len(pairs))
	}
	for pair, n := range pairs {
		if n > 25 {
			t.Errorf("%d jobs meet at %s", n, pair)
		}
	}
}

func TestHashedDayExistsInEveryMonth(t *testing.T) {
	for i := range 1000 {
		days := firstOf(t, "0 0 H * ?", fmt.Sprint(i), "02", 24)
		if want := strings.TrimSpace(strings.Repeat(days[:2]+" ", 24)); days != want || days[:2] > "28" {
			t.Fatalf("job %d fires on the days %s", i, days)
		}
	}
}

func TestHashStepsFromAHashedStart(t *testing.T) {
	for i := range 200 {
		minutes := strings.Fields(firstOf(t, "H/25 * * * *", fmt.Sprint(i), "04", 6))
		first, err := strconv.Atoi(minutes[0])
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for m := first; m < 60; m += 25 {
			want = append(want, fmt.Sprintf("%02d", m))
		}
		if first >= 25 || !slices.Equal(minutes[:len(want)], want) || minutes[len(want)] != minutes[0] {
			t.Fatalf("job %d fires at the minutes %v", i, minutes)
		}
	}
}

func TestHashTakesEitherCaseAndAnEmptyID(t *testing.T) {
	for _, jobID := range []string{"", "job-1", "JOB-1"} {
		if lower, upper := firstOf(t, "h h(0-5) h/9 * ?", jobID, "0102 1504", 5), firstOf(t, "H H(0-5) H/9 * ?", jobID, "0102 1504", 5); lower != upper {
			t.Errorf("%q: h fires at %s, H at %s", jobID, lower, upper)
		}
	}
	if firstOf(t, "H H H * ?", "job-1", "02 1504", 1) == firstOf(t, "H H H * ?", "JOB-1", "02 1504", 1) {
		t.Error("ids that differ in case share a hash")
	}
}

func TestItemsOfAFieldShareTheHash(t *testing.T) {
	if got, want := firstOf(t, "H(0-29),H(30-59) * * * *", "job-1", "04", 6), firstOf(t, "H/30 * * * *", "job-1", "04", 6); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// H counts as set, so a match of either day field is enough; a starred field would need both.
func TestHashedDayFieldCountsAsSet(t *testing.T) {
	for _, test := range []struct{ hashed, plain string }{
		{"0 0 H * MON", "0 0 %s * MON"},
		{"0 0 H/7 * MON", "0 0 %s * MON"},
		{"0 0 13 * H", "0 0 13 * %s"},
	} {
		alone := strings.NewReplacer("MON", "?", " 13 ", " ? ").Replace(test.hashed)
		layout := "2"
		if strings.HasSuffix(alone, "H") {
			layout = "Mon"
		}
		days := strings.Fields(firstOf(t, alone, "job-1", layout, 60))
		slices.Sort(days)
		plain := fmt.Sprintf(test.plain, strings.Join(slices.Compact(days), ","))
		if got, want := firstOf(t, test.hashed, "job-1", "0102", 50), firstOf(t, plain, "job-1", "0102", 50); got != want {
			t.Errorf("%s: got %s\nwant as %s: %s", test.hashed, got, plain, want)
		}
	}
}

func TestHashedHourIsAFixedTimeAndAHashedStepARhythm(t *testing.T) {
	const zone = "America/New_York"
	from, to := utc(t, "2024-03-10T05:00:00Z"), utc(t, "2024-03-10T12:00:00Z")
	for _, test := range []struct {
		expr  string
		gap   job.GapPolicy
		count int
	}{
		{"30 H(2-2) * * *", job.GapNextValid, 1}, // 02:30 does not exist on that day, and fires at 03:30
		{"30 H(2-2) * * *", job.GapSkip, 0},
		{"30 H(2-2)/1 * * *", job.GapNextValid, 0},
		{"30 2,H(2-2)/1 * * *", job.GapNextValid, 0},
	} {
		s := cron(test.expr, zone)
		s.DST.Gap = test.gap
		if got := between(t, compile(t, s), from, to); len(got) != test.count {
			t.Errorf("%s, %s: %v", test.expr, test.gap, got)
		}
	}
}

func TestWhetherAHashedMonthHasTheDayDependsOnTheJob(t *testing.T) {
	refused := 0
	for i := range 1200 {
		if _, err := schedule.Compile(cron("0 0 30 H *", ""), fmt.Sprint(i)); err != nil {
			refused++
		}
	}
	if refused < 60 || refused > 150 { // one month of twelve
		t.Errorf("%d of 1200 jobs are refused", refused)
	}
}
