package occurrence

import (
	"time"

	"github.com/minutehand/minutehand/libs/schedule"
)

// Other time zone data may name another instant in place of one: one that differs by what offsets differ by, which are multiples of zoneStep up to
// zoneReach, or by a day where the date line moves.
const zoneStep, zoneReach, zoneDay = 15 * time.Minute, 3 * time.Hour, 24 * time.Hour

// Due is a nominal instant, and when it is due.
type Due struct{ Nominal, At time.Time }

// Elsewhere returns the instants that other time zone data may have named in place of some instants of a schedule, at most 234 for three.
func Elsewhere(plan *schedule.Plan, instants ...time.Time) (list []Due) {
	for _, instant := range instants {
		period := time.Duration(0)
		if next, ok := plan.Next(instant); ok {
			period = next.Sub(instant)
		}
		add := func(by time.Duration) {
			at := instant.Add(by)
			for _, due := range plan.MayBeDue(at, period) {
				list = append(list, Due{at, due})
			}
		}
		add(-zoneDay)
		add(zoneDay)
		for d := zoneStep; d <= zoneReach; d += zoneStep {
			add(-d)
			add(d)
		}
	}
	return list
}
