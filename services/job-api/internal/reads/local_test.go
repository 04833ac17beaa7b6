package reads

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// The offset is the one by which the instant was planned, whatever the zone's clocks do by now.
func TestExecutionIsShownInTheTimeOfItsZone(t *testing.T) {
	at := time.Date(2030, 1, 1, 10, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		note *job.Note
		want string
	}{
		{nil, ""},
		{&job.Note{Source: "exe_1"}, ""},
		{&job.Note{TZData: "2025c", UTCOffset: 3600}, "2030-01-01T11:00:00+01:00"},
		{&job.Note{TZData: "2025c", UTCOffset: -3*3600 - 1800}, "2030-01-01T06:30:00-03:30"},
	} {
		e := job.Event{Type: job.EventAttempt, Entry: job.Entry{NominalAt: at, Trigger: job.TriggerSchedule, Note: c.note}}
		if x := group([]job.Event{e}); x[0].Local != c.want {
			t.Errorf("%+v: it is shown at %q, want %q", c.note, x[0].Local, c.want)
		}
	}
}
