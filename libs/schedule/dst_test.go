package schedule_test

import (
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// Each case lists all occurrences in [from, to) in the zone's local time, with offsets to distinguish the passes of a fold.
func TestOccurrencesWhereLocalTimeJumps(t *testing.T) {
	skip := job.DST{Gap: job.GapSkip}
	last, both := job.DST{Fold: job.FoldLast}, job.DST{Fold: job.FoldBoth}
	const (
		newYork  = "America/New_York"
		london   = "Europe/London"
		lordHowe = "Australia/Lord_Howe"
		saoPaulo = "America/Sao_Paulo"
		apia     = "Pacific/Apia"
		stJohns  = "America/St_Johns"
	)
	tests := []struct {
		name, zone, expr string
		dst              job.DST
		from, to         string
		want             []string
	}{
		{
			"gap moves later by its length", newYork, "30 2 * * *",
			job.DST{},
			"2024-03-09T12:00:00Z", "2024-03-11T12:00:00Z",
			[]string{"2024-03-10T03:30:00-04:00", "2024-03-11T02:30:00-04:00"},
		},
		{
			"gap skips", newYork, "30 2 * * *", skip, "2024-03-09T12:00:00Z", "2024-03-11T12:00:00Z",
			[]string{"2024-03-11T02:30:00-04:00"},
		},
		{
			"gap and next hour meet once", newYork, "0 2,3 * * *",
			job.DST{},
			"2024-03-10T00:00:00-05:00", "2024-03-11T00:00:00-04:00",
			[]string{"2024-03-10T03:00:00-04:00"},
		},
		{
			"gap meets the next hour at each minute", newYork, "15,45 1-3 * * *",
			job.DST{},
			"2024-03-10T00:00:00-05:00", "2024-03-11T00:00:00-04:00",
			[]string{"2024-03-10T01:15:00-05:00", "2024-03-10T01:45:00-05:00", "2024-03-10T03:15:00-04:00", "2024-03-10T03:45:00-04:00"},
		},
		{
			"gap moves each minute of a fixed hour", newYork, "*/20 2 * * *",
			job.DST{},
			"2024-03-10T00:00:00-05:00", "2024-03-11T00:00:00-04:00",
			[]string{"2024-03-10T03:00:00-04:00", "2024-03-10T03:20:00-04:00", "2024-03-10T03:40:00-04:00"},
		},
		{
			"gap moves nothing of a rhythm", newYork, "30 */2 * * *",
			job.DST{},
			"2024-03-10T00:00:00-05:00", "2024-03-10T06:00:00-04:00",
			[]string{"2024-03-10T00:30:00-05:00", "2024-03-10T04:30:00-04:00"},
		},
		{
			"every hour in the gap", newYork, "0 * * * *",
			job.DST{},
			"2024-03-10T00:00:00-05:00", "2024-03-10T05:00:00-04:00",
			[]string{"2024-03-10T00:00:00-05:00", "2024-03-10T01:00:00-05:00", "2024-03-10T03:00:00-04:00", "2024-03-10T04:00:00-04:00"},
		},
		{
			"a range of all hours is fixed times", newYork, "0 0-23 * * *",
			job.DST{},
			"2024-11-03T00:00:00-04:00", "2024-11-03T03:00:00-05:00",
			[]string{"2024-11-03T00:00:00-04:00", "2024-11-03T01:00:00-04:00", "2024-11-03T02:00:00-05:00"},
		},
		{
			"fold fires first", newYork, "30 1 * * *",
			job.DST{},
			"2024-11-02T12:00:00Z", "2024-11-04T12:00:00Z",
			[]string{"2024-11-03T01:30:00-04:00", "2024-11-04T01:30:00-05:00"},
		},
		{
			"fold fires last", newYork, "30 1 * * *", last, "2024-11-02T12:00:00Z", "2024-11-04T12:00:00Z",
			[]string{"2024-11-03T01:30:00-05:00", "2024-11-04T01:30:00-05:00"},
		},
		{
			"fold fires both", newYork, "30 1 * * *", both, "2024-11-02T12:00:00Z", "2024-11-04T12:00:00Z",
			[]string{"2024-11-03T01:30:00-04:00", "2024-11-03T01:30:00-05:00", "2024-11-04T01:30:00-05:00"},
		},
		{
			"fold ends are exclusive", newYork, "0 1,2 * * *", last, "2024-11-03T00:00:00-04:00", "2024-11-04T00:00:00-05:00",
			[]string{"2024-11-03T01:00:00-05:00", "2024-11-03T02:00:00-05:00"},
		},
		{
			"rhythm fires in both passes whatever the policy", newYork, "*/30 * * * *",
			job.DST{},
			"2024-11-03T01:00:00-04:00", "2024-11-03T02:00:00-05:00",
			[]string{"2024-11-03T01:00:00-04:00", "2024-11-03T01:30:00-04:00", "2024-11-03T01:00:00-05:00", "2024-11-03T01:30:00-05:00"},
		},
		{
			"step over a range is a rhythm", newYork, "0 1-5/4 * * *",
			job.DST{},
			"2024-11-03T00:00:00-04:00", "2024-11-04T00:00:00-05:00",
			[]string{"2024-11-03T01:00:00-04:00", "2024-11-03T01:00:00-05:00", "2024-11-03T05:00:00-05:00"},
		},

		{
			"gap", london, "30 1 * * *",
			job.DST{},
			"2024-03-30T12:00:00Z", "2024-04-01T12:00:00Z",
			[]string{"2024-03-31T02:30:00+01:00", "2024-04-01T01:30:00+01:00"},
		},
		{
			"fold", london, "30 1 * * *",
			job.DST{},
			"2024-10-26T12:00:00Z", "2024-10-28T12:00:00Z",
			[]string{"2024-10-27T01:30:00+01:00", "2024-10-28T01:30:00Z"},
		},
		{
			"weekly on the day of the gap", london, "30 1 * * SUN",
			job.DST{},
			"2024-03-25T00:00:00Z", "2024-04-08T00:00:00Z",
			[]string{"2024-03-31T02:30:00+01:00", "2024-04-07T01:30:00+01:00"},
		},
		{
			"years beyond the recorded transitions", london, "30 1 * * *", both, "2150-10-25T00:00:00+01:00", "2150-10-26T00:00:00Z",
			[]string{"2150-10-25T01:30:00+01:00", "2150-10-25T01:30:00Z"},
		},

		{
			"half-hour gap moves by half an hour", lordHowe, "15 2 * * *",
			job.DST{},
			"2024-10-05T12:00:00Z", "2024-10-07T12:00:00Z",
			[]string{"2024-10-06T02:45:00+11:00", "2024-10-07T02:15:00+11:00"},
		},
		{
			"half-hour gap meets the half hour", lordHowe, "0,30 2 * * *",
			job.DST{},
			"2024-10-06T00:00:00+10:30", "2024-10-07T00:00:00+11:00",
			[]string{"2024-10-06T02:30:00+11:00"},
		},
		{
			"half-hour gap interleaves with what exists, in order", lordHowe, "0,20,35 2 * * *",
			job.DST{},
			"2024-10-06T00:00:00+10:30", "2024-10-07T00:00:00+11:00",
			[]string{"2024-10-06T02:30:00+11:00", "2024-10-06T02:35:00+11:00", "2024-10-06T02:50:00+11:00"},
		},
		{
			"half-hour gap in a rhythm", lordHowe, "*/15 * * * *",
			job.DST{},
			"2024-10-06T01:45:00+10:30", "2024-10-06T03:00:00+11:00",
			[]string{"2024-10-06T01:45:00+10:30", "2024-10-06T02:30:00+11:00", "2024-10-06T02:45:00+11:00"},
		},
		{
			"half-hour fold", lordHowe, "15,45 1 * * *", both, "2024-04-07T00:00:00+11:00", "2024-04-08T00:00:00+10:30",
			[]string{"2024-04-07T01:15:00+11:00", "2024-04-07T01:45:00+11:00", "2024-04-07T01:45:00+10:30"},
		},
		{
			"half-hour fold first", lordHowe, "15,45 1 * * *",
			job.DST{},
			"2024-04-07T00:00:00+11:00", "2024-04-08T00:00:00+10:30",
			[]string{"2024-04-07T01:15:00+11:00", "2024-04-07T01:45:00+11:00"},
		},
		{
			"half-hour fold last", lordHowe, "15,45 1 * * *", last, "2024-04-07T00:00:00+11:00", "2024-04-08T00:00:00+10:30",
			[]string{"2024-04-07T01:15:00+11:00", "2024-04-07T01:45:00+10:30"},
		},

		{
			"midnight that does not exist", saoPaulo, "0 0 * * *",
			job.DST{},
			"2018-11-03T00:00:00-03:00", "2018-11-06T00:00:00-02:00",
			[]string{"2018-11-03T00:00:00-03:00", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"},
		},
		{
			"midnight that does not exist, skipped", saoPaulo, "0 0 * * *", skip, "2018-11-03T00:00:00-03:00", "2018-11-06T00:00:00-02:00",
			[]string{"2018-11-03T00:00:00-03:00", "2018-11-05T00:00:00-02:00"},
		},
		{
			"midnight of one date only", saoPaulo, "30 0 4 11 *",
			job.DST{},
			"2018-01-01T00:00:00Z", "2019-01-01T00:00:00Z",
			[]string{"2018-11-04T01:30:00-02:00"},
		},
		{
			"fold before midnight belongs to its date", saoPaulo, "30 23 * * SAT", both, "2018-02-17T00:00:00-02:00", "2018-02-19T00:00:00-03:00",
			[]string{"2018-02-17T23:30:00-02:00", "2018-02-17T23:30:00-03:00"},
		},

		{
			"missing day meets the next", apia, "0 9 * * *",
			job.DST{},
			"2011-12-29T00:00:00-10:00", "2012-01-01T00:00:00+14:00",
			[]string{"2011-12-29T09:00:00-10:00", "2011-12-31T09:00:00+14:00"},
		},
		{
			"missing day of the month fires a day later", apia, "0 9 30 * *",
			job.DST{},
			"2011-12-01T00:00:00-10:00", "2012-01-31T00:00:00+14:00",
			[]string{"2011-12-31T09:00:00+14:00", "2012-01-30T09:00:00+14:00"},
		},
		{
			"missing day of the month, skipped", apia, "0 9 30 * *", skip, "2011-12-01T00:00:00-10:00", "2012-01-31T00:00:00+14:00",
			[]string{"2012-01-30T09:00:00+14:00"},
		},
		{
			"missing day in a rhythm", apia, "0 */12 * * *",
			job.DST{},
			"2011-12-29T00:00:00-10:00", "2012-01-01T00:00:00+14:00",
			[]string{"2011-12-29T00:00:00-10:00", "2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"},
		},

		{
			"jump at one minute past midnight", stJohns, "0,30 0 * * *",
			job.DST{},
			"2007-03-11T00:00:00-03:30", "2007-03-12T00:00:00-02:30",
			[]string{"2007-03-11T00:00:00-03:30", "2007-03-11T01:30:00-02:30"},
		},
		{
			"fold over midnight, both dates", stJohns, "0 0,23 * * *", both, "2007-11-03T12:00:00-02:30", "2007-11-04T12:00:00-03:30",
			[]string{"2007-11-03T23:00:00-02:30", "2007-11-04T00:00:00-02:30", "2007-11-04T00:00:00-03:30"},
		},
	}
	for _, test := range tests {
		t.Run(test.zone+" "+test.name, func(t *testing.T) {
			s := cron(test.expr, test.zone)
			s.DST = test.dst
			loc, err := schedule.LoadLocation(test.zone)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, at := range between(t, compile(t, s), utc(t, test.from), utc(t, test.to)) {
				got = append(got, at.In(loc).Format(time.RFC3339))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%s:\n got %v\nwant %v", test.expr, got, test.want)
			}
		})
	}
}
