package writes

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// A later release may have added a field to a schedule that a client changes through this one, or does not change.
func TestCountGoesOnIfTheScheduleIsTheSameAsFarAsItIsKnown(t *testing.T) {
	began := time.Date(2030, 1, 2, 3, 0, 0, 0, time.UTC)
	schedule := job.Schedule{Type: job.ScheduleInterval, Every: time.Minute, StartAt: began, MaxOccurrences: 10}
	for _, c := range []struct {
		name    string
		unknown string
		every   time.Duration
		ordinal int
	}{{"nothing unknown", "", time.Minute, 10}, {"something unknown", "\xc0\x3e\x07", time.Minute, 10}, {"another schedule", "", time.Hour, 1}} {
		j := job.Job{ID: "job_01M7ZJW5E6D77SAJPXRW35C2CA", Definition: job.Definition{EffectiveAt: began, FirstOrdinal: 1, Schedule: schedule}}
		j.Definition.Schedule.Unknown = c.unknown
		def := job.Definition{EffectiveAt: began.Add(9 * time.Minute), FirstOrdinal: 1, Schedule: schedule}
		def.Schedule.Every = c.every
		if err := carryOrdinal(&j, &def); err != nil || def.FirstOrdinal != c.ordinal {
			t.Errorf("%s: goes on with occurrence %d, %v; want %d", c.name, def.FirstOrdinal, err, c.ordinal)
		}
	}
}
