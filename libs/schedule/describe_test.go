package schedule_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

func describe(t testing.TB, s job.Schedule) string {
	t.Helper()
	text, err := schedule.Describe(s, "job-1")
	if err != nil {
		t.Fatalf("Describe(%+v): %v", s, err)
	}
	return text
}

func TestExpressionsReadAsEnglish(t *testing.T) {
	tests := []struct{ expr, want string }{
		{"0 9 * * *", "At 09:00 every day"},
		{"0 9 * * MON", "At 09:00 on Monday"},
		{"30 8,17 * * *", "At 08:30 and 17:30 every day"},
		{"*/15 9-17 * * MON-FRI", "Every 15 minutes, from 09:00 through 17:45, Monday through Friday"},
		{"*/15 9 * * *", "At 09:00, 09:15, 09:30 and 09:45 every day"},
		{"*/15 * * * *", "Every 15 minutes"},
		{"5/15 * * * *", "Every 15 minutes, from 00:05 through 23:50"},
		{"*/10 8,18 * * *", "Every 10 minutes, from 08:00 through 08:50 and from 18:00 through 18:50"},
		{"*/7 * * * *", "At every 7th minute from 0 through 56 of every hour"},
		{"5,17 * * * *", "At minutes 5 and 17 of every hour"},
		{"5,17 9-12 * * *", "At 09:05, 09:17, 10:05, 10:17, 11:05, 11:17, 12:05 and 12:17 every day"},
		{"5,17,43 9 * * *", "At 09:05, 09:17 and 09:43 every day"},
		{"0 1,5,6,13,20 * * *", "At 01:00, 05:00, 06:00, 13:00 and 20:00 every day"},
		{"* * * * *", "Every minute"},
		{"* 9 * * *", "Every minute, from 09:00 through 09:59"},
		{"* 0-23 * * *", "Every minute, from 00:00 through 23:59"},
		{"0 * * * *", "Every hour"},
		{"30 * * * *", "Every hour at minute 30"},
		{"0 0-23 * * *", "Every hour, from 00:00 through 23:00"},
		{"0 */2 * * *", "Every 2 hours, from 00:00 through 22:00"},
		{"0 1/2 * * *", "Every 2 hours, from 01:00 through 23:00"},
		{"0 9-17/2 * * *", "Every 2 hours, from 09:00 through 17:00"},
		{"*/30 */2 * * *", "At minutes 0 and 30 of every 2nd hour from 0 through 22"},
		{"0 */6 * * *", "At 00:00, 06:00, 12:00 and 18:00 every day"},
		{"0 9-17 * * *", "Every hour, from 09:00 through 17:00"},
		{"0 9-11,14-17 * * *", "Every hour, from 09:00 through 11:00 and from 14:00 through 17:00"},
		{"0 22-2 * * *", "Every hour, from 22:00 through 02:00"},
		{"0 22-2 * * MON", "Every hour, from 00:00 through 02:00 and from 22:00 through 23:00, on Monday"},
		{"*/20 22-2 * * *", "Every 20 minutes, from 22:00 through 02:40"},
		{"*/20 22-2 * 1 *", "Every 20 minutes, from 00:00 through 02:40 and from 22:00 through 23:40, in January"},
		{"0 22-6/4 * * *", "At 02:00, 06:00 and 22:00 every day"},
		{"* 1,3,5,7,9 * * *", "Every minute of every 2nd hour from 1 through 9"},
		{"* * * * * *", "Every second"},
		{"*/10 * * * * *", "Every 10 seconds"},
		{"5/10 * * * * *", "Every 10 seconds, from 00:00:05 through 23:59:55"},
		{"15 * * * * *", "Every minute at second 15"},
		{"15 */5 * * * *", "Every 5 minutes, from 00:00:15 through 23:55:15"},
		{"30 0 9 * * *", "At 09:00:30 every day"},
		{"0,30 0 9 * * *", "At 09:00:00 and 09:00:30 every day"},
		{"* * 9-10 * * *", "Every second, from 09:00:00 through 10:59:59"},
		{"*/10 0-4 * * * *", "Every 10 seconds of minutes 0 through 4 of every hour"},
		{"1,7 * * * * *", "At seconds 1 and 7 of every minute"},
		{"1,7 5,9 * * * *", "At seconds 1 and 7 of minutes 5 and 9 of every hour"},
		{"15 30 * * * *", "Every hour, from 00:30:15 through 23:30:15"},
		{"3/10 */3 1,2 * * *", "At every 10th second from 3 through 53 of every 3rd minute from 0 through 57 of hours 1 and 2"},
		{"0 0 L * ?", "At 00:00 on the last day of the month"},
		{"0 0 L-1 * *", "At 00:00 on the day before the last day of the month"},
		{"0 0 L-3 * *", "At 00:00 on the day 3 days before the last day of the month"},
		{"0 0 L,15 * *", "At 00:00 on day 15 and the last day of the month"},
		{"0 12 15W * *", "At 12:00 on the weekday nearest day 15 of the month"},
		{"0 12 LW * *", "At 12:00 on the last weekday of the month"},
		{"0 0 1 * *", "At 00:00 on day 1 of the month"},
		{"0 0 1,15 * *", "At 00:00 on days 1 and 15 of the month"},
		{"0 0 10-15 * *", "At 00:00 on days 10 through 15 of the month"},
		{"0 0 30-2 * *", "At 00:00 on days 1, 2, 30 and 31 of the month"},
		{"0 0 */2 * *", "At 00:00 on every 2nd day from 1 through 31 of the month"},
		{"0 0 */10 * *", "At 00:00 on days 1, 11, 21 and 31 of the month"},
		{"0 0 1-31 * *", "At 00:00 every day"},
		{"0 0 1-31 * MON", "At 00:00 every day"},
		{"0 0 * * 5#3", "At 00:00 on the third Friday of the month"},
		{"0 0 * * 5#3,1#1", "At 00:00 on the first Monday of the month and the third Friday of the month"},
		{"0 0 * * 5L", "At 00:00 on the last Friday of the month"},
		{"0 0 * * MON,5L", "At 00:00 on Monday and the last Friday of the month"},
		{"0 0 1 * FRI", "At 00:00 on day 1 of the month or on Friday"},
		{"0 0 1,L * 5#2", "At 00:00 on day 1 and the last day of the month or on the second Friday of the month"},
		{"0 0 1 * MON-FRI", "At 00:00 on day 1 of the month or on Monday through Friday"},
		{"0 0 */2 * MON", "At 00:00 on every 2nd day from 1 through 31 of the month, only if that is Monday"},
		{"0 0 */28 2 1#5", "At 00:00 on days 1 and 29 of the month, only if that is the fifth Monday of the month, in February"},
		{"0 0 15 * */3", "At 00:00 on day 15 of the month, only if that is Wednesday, Saturday or Sunday"},
		{"0 0 13 * 0-7", "At 00:00 every day"},
		{"0 0 * * SAT,SUN", "At 00:00 on Saturday and Sunday"},
		{"0 0 * * FRI-MON", "At 00:00, Friday through Monday"},
		{"0 0 * * FRI-MON/2", "At 00:00 on Sunday and Friday"},
		{"0 0 * * MON,WED,FRI", "At 00:00 on Monday, Wednesday and Friday"},
		{"0 0 * * MON-WED,FRI", "At 00:00 on Monday through Wednesday and Friday"},
		{"0 0 * * 0-6", "At 00:00 every day"},
		{"0 0 * * 7", "At 00:00 on Sunday"},
		{"*/5 * * * SAT", "Every 5 minutes on Saturday"},
		{"*/5 9-17 * * MON", "Every 5 minutes, from 09:00 through 17:55, on Monday"},
		{"0 0 1 1 *", "At 00:00 on day 1 of January"},
		{"0 0 1 JAN,JUL *", "At 00:00 on day 1 of January and July"},
		{"0 0 1 NOV-FEB *", "At 00:00 on day 1 of the months November through February"},
		{"0 0 1 */2 *", "At 00:00 on day 1 of every 2nd month from January through November"},
		{"0 0 1 */3 *", "At 00:00 on day 1 of January, April, July and October"},
		{"0 0 * 6 *", "At 00:00 every day in June"},
		{"0 0 12 * * MON", "At 12:00 on Monday"},
		{"0 9 * 6-8 MON", "At 09:00 on Monday, in the months June through August"},
		{"0 9 * 6-8 MON-FRI", "At 09:00, Monday through Friday, in the months June through August"},
		{"0 9 1 6 FRI", "At 09:00 on day 1 of the month or on Friday, in June"},
		{"*/15 9-17 * 12 *", "Every 15 minutes, from 09:00 through 17:45, in December"},
		{"*/15 9-17 * * *", "Every 15 minutes, from 09:00 through 17:45"},
		{"* * * 12 *", "Every minute in December"},
		{"0 9 * 12 5L", "At 09:00 on the last Friday of December"},
		{"0 0 0 29 2 ? 2000-2199/4", "At 00:00 on day 29 of February, in every 4th year from 2000 through 2196"},
		{"0 0 12 * * ? 2027", "At 12:00 every day, in 2027"},
		{"0 0 12 1 1 ? 2027,2029", "At 12:00 on day 1 of January, in 2027 and 2029"},
		{"0 0 12 ? 3 MON-FRI 2027-2030", "At 12:00, Monday through Friday, in March, in 2027 through 2030"},
		{"0 */5 * * * ? 2027", "Every 5 minutes, in 2027"},
		{"@yearly", "At 00:00 on day 1 of January"},
		{"@monthly", "At 00:00 on day 1 of the month"},
		{"@weekly", "At 00:00 on Sunday"},
		{"@daily", "At 00:00 every day"},
		{"@hourly", "Every hour"},
		{"0 0 ? * ?", "At 00:00 every day"},
		{"H H * * *", "At 19:35 every day (spread by H)"},
		{"H/15 * * * *", "Every 15 minutes, from 00:05 through 23:50 (spread by H)"},
		{"H(0-29)/10 H(22-2) * * MON-FRI", "At 02:05, 02:15 and 02:25, Monday through Friday (spread by H)"},
		{"0 0 H H ?", "At 00:00 on day 10 of August (spread by H)"},
		{"0 9 * * H", "At 09:00 on Thursday (spread by H)"},
		{"0 9 H * FRI", "At 09:00 on day 10 of the month or on Friday (spread by H)"},
		{"H 9-17 * * *", "Every hour, from 09:35 through 17:35 (spread by H)"},
		{"H H * * * *", "Every hour, from 00:35:41 through 23:35:41 (spread by H)"},
		{"0 0,H(5-5) * * *", "At 00:00 and 05:00 every day (spread by H)"},
		{"0 0 30,31 * ?", "At 00:00 on days 30 and 31 of the month"},
		{"59 23 31 12 *", "At 23:59 on day 31 of December"},
		{"*/30 9-16 1-7 * *", "Every 30 minutes, from 09:00 through 16:30, on days 1 through 7 of the month"},
		{"0 0 1-7,15 * *", "At 00:00 on days 1 through 7 and 15 of the month"},
		{"0 8 ? * 2#1,2#3", "At 08:00 on the first Tuesday of the month and the third Tuesday of the month"},
		{"0 0 8 * MON#2", "At 00:00 on day 8 of the month or on the second Monday of the month"},
		{"0 0 LW 3,6,9,12 *", "At 00:00 on the last weekday of March, June, September and December"},
		{"0 0 12 L 2 ? 2028", "At 12:00 on the last day of February, in 2028"},
		{"0-30 9 * * *", "Every minute, from 09:00 through 09:30"},
		{"0 4-20/4 * * *", "Every 4 hours, from 04:00 through 20:00"},
		{"15,45 */3 * * *", "At minutes 15 and 45 of every 3rd hour from 0 through 21"},
		{"0,30 9-12 * * *", "Every 30 minutes, from 09:00 through 12:30"},
		{"0 6,7,8,18,19,20,21 * * *", "Every hour, from 06:00 through 08:00 and from 18:00 through 21:00"},
		{"0 0 */31 2 *", "At 00:00 on day 1 of February"},
		{"0 0 * 1-6 *", "At 00:00 every day in the months January through June"},
		{"*/7 9 * * *", "Every 7 minutes, from 09:00 through 09:56"},
		{"15 5-30/5 9 * * *", "Every 5 minutes, from 09:05:15 through 09:30:15"},
	}
	for _, test := range tests {
		if got := describe(t, cron(test.expr, "")); got != test.want+", UTC" {
			t.Errorf("%q:\n got %s\nwant %s", test.expr, got, test.want)
		}
	}
}

func TestSchedulesReadAsEnglish(t *testing.T) {
	start, end := utc(t, "2026-01-01T00:00:00Z"), utc(t, "2027-06-30T12:00:00.25Z")
	interval := func(every time.Duration) job.Schedule {
		return job.Schedule{Type: job.ScheduleInterval, Every: every, StartAt: start}
	}
	with := func(s job.Schedule, change func(*job.Schedule)) job.Schedule {
		change(&s)
		return s
	}
	daily := cron("0 9 * * *", "")
	tests := []struct {
		want string
		s    job.Schedule
	}{
		{"At 09:00 on Monday, America/Los_Angeles time", cron("0 9 * * MON", "America/Los_Angeles")},
		{"At 09:00 every day, Etc/UTC time", cron("0 9 * * *", "Etc/UTC")},
		{"At 19:35 every day (spread by H), Europe/Berlin time", cron("H H * * *", "Europe/Berlin")},
		{"Once, at 2027-06-30T12:00:00.25Z", job.Schedule{Type: job.ScheduleOneShot, RunAt: end.Add(time.Microsecond)}},
		{"Once, at 2026-01-01T00:00:00Z", job.Schedule{Type: job.ScheduleOneShot, RunAt: start, StartAt: start, EndAt: end, MaxOccurrences: 3, Timezone: "Asia/Tokyo"}},
		{"Once, at 2026-01-01T00:00:00Z, up to 1 minute later", job.Schedule{Type: job.ScheduleOneShot, RunAt: start, Jitter: time.Minute}},
		{"Every 15 minutes, counted from 2026-01-01 00:00:00 UTC", interval(15 * time.Minute)},
		{"Every second, counted from 2026-01-01 00:00:00 UTC", interval(time.Second)},
		{"Every minute, counted from 2026-01-01 00:00:00 UTC", interval(time.Minute)},
		{"Every hour, counted from 2026-01-01 00:00:00 UTC", interval(time.Hour)},
		{"Every 24 hours, counted from 2026-01-01 00:00:00 UTC", interval(24 * time.Hour)},
		{"Every 1 hour 30 minutes, counted from 2026-01-01 00:00:00 UTC", interval(90 * time.Minute)},
		{"Every 1 hour 1 second 5 milliseconds, counted from 2026-01-01 00:00:00 UTC", interval(time.Hour + 1005*time.Millisecond)},
		{"Every hour, counted from 2027-06-30 12:00:00.25 UTC", with(interval(time.Hour), func(s *job.Schedule) { s.StartAt = end })},
		{
			"Every hour, counted from 2026-01-01 00:00:00 UTC, ending before 2027-06-30 12:00:00.25 UTC, at most 10 times, up to 30 seconds later",
			with(interval(time.Hour), func(s *job.Schedule) { s.EndAt, s.MaxOccurrences, s.Jitter = end, 10, 30*time.Second }),
		},
		{"At 09:00 every day, UTC, not before 2026-01-01 00:00:00 UTC", with(daily, func(s *job.Schedule) { s.StartAt = start })},
		{"At 09:00 every day, UTC, ending before 2027-06-30 12:00:00.25 UTC", with(daily, func(s *job.Schedule) { s.EndAt = end })},
		{"At 09:00 every day, UTC", with(daily, func(s *job.Schedule) { s.EndAt = utc(t, "9999-12-31T23:59:59Z") })},
		{"At 09:00 every day, UTC, at most 10 times", with(daily, func(s *job.Schedule) { s.MaxOccurrences = 10 })},
		{"At 09:00 every day, UTC, at most once", with(daily, func(s *job.Schedule) { s.MaxOccurrences = 1 })},
		{"At 09:00 every day, UTC, up to 10 minutes later at full hours of UTC", with(daily, func(s *job.Schedule) { s.Spread = 10 * time.Minute })},
		{"At 09:00 every day, UTC, up to 1 hour 500 milliseconds later", with(daily, func(s *job.Schedule) { s.Jitter = time.Hour + 500*time.Millisecond })},
	}
	for _, test := range tests {
		if got := describe(t, test.s); got != test.want {
			t.Errorf("%+v:\n got %s\nwant %s", test.s, got, test.want)
		}
	}
}

func TestDescribeRefusesWhatCompileRefuses(t *testing.T) {
	s := cron("60 24 * * *", "Nowhere/Land")
	_, want := schedule.Compile(s, "job-1")
	if text, err := schedule.Describe(s, "job-1"); text != "" || err == nil || err.Error() != want.Error() {
		t.Errorf("Describe = %q, %v, want %v", text, err, want)
	}
}

// checkSentence fails if a description is not a clean line of text.
func checkSentence(t interface{ Fatalf(string, ...any) }, s job.Schedule, text string, err error) {
	if err != nil || text == "" || strings.TrimSpace(text) != text || strings.Contains(text, "  ") || strings.Contains(text, " ,") || strings.Contains(text, ",,") || strings.Contains(text, "%!") {
		t.Fatalf("%q: %q, %v", s.CronExpr, text, err)
	}
}

func TestWhateverCompilesHasADescription(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := cron(drawNaive(t).String(), "")
		if _, err := schedule.Compile(s, hashedJob); err != nil {
			t.Skip("can never match")
		}
		text, err := schedule.Describe(s, hashedJob)
		checkSentence(t, s, text, err)
	})
}

// H is described by its values, and so is any other spelling of the same values.
func TestADescriptionIsOfTheValuesNotOfTheSpelling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawNaive(t)
		hashed, plain := cron(n.String(), ""), cron(n.plain(), "")
		if n.rhythm() != (strings.HasPrefix(n.hour.plain, "*") || strings.Contains(n.hour.plain, "/")) {
			t.Skip("a rhythm only because of the slash in H/n")
		}
		if _, err := schedule.Compile(plain, ""); err != nil {
			t.Skip("can never match, or is too long without H")
		}
		want, err := schedule.Describe(plain, "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := schedule.Describe(hashed, hashedJob)
		checkSentence(t, hashed, got, err)
		if strings.Replace(got, " (spread by H)", "", 1) != want {
			t.Fatalf("%s: %s\n%s: %s", hashed.CronExpr, got, plain.CronExpr, want)
		}
	})
}
