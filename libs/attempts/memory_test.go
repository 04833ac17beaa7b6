package attempts

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
)

// Whatever a server accepted that went on after a replica had been promoted is lost, just like what came before the promotion.
func TestIncarnationCoversWhatCameAfterTheServerThatItReplacedHadEnded(t *testing.T) {
	began := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	epoch := NextEpoch(0, began)
	for _, c := range []struct {
		memory Memory
		at     time.Time
		covers bool
	}{
		{Memory{Incarnation: IncarnationName(epoch, "x")}, began.Add(clock.MaxDifference), false},
		{Memory{Incarnation: IncarnationName(epoch, "x")}, began.Add(clock.MaxDifference + 1), true},
		{Memory{Incarnation: IncarnationName(epoch, "x"), KeptSince: began.Add(time.Minute)}, began.Add(time.Minute), false},
		{Memory{Incarnation: PromotedName(epoch, "x")}, began.Add(ReplacedFor + clock.MaxDifference), false},
		{Memory{Incarnation: PromotedName(epoch, "x")}, began.Add(ReplacedFor + clock.MaxDifference + 1), true},
		{Memory{Incarnation: "no name"}, began.Add(time.Hour), false},
	} {
		if c.memory.Covers(c.at) != c.covers {
			t.Errorf("%+v covers %s: want %t", c.memory, c.at, c.covers)
		}
	}
}
