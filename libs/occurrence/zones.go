package occurrence

import "time"

// Other time zone data may name another instant in place of one: one that differs by what offsets differ by, which are multiples of zoneStep up to
// zoneReach, or by a day where the date line moves.
const zoneStep, zoneReach, zoneDay = 15 * time.Minute, 3 * time.Hour, 24 * time.Hour

// Elsewhere returns the instants that other time zone data may have named in place of some.
func Elsewhere(instants ...time.Time) (list []time.Time) {
	for _, at := range instants {
		list = append(list, at.Add(-zoneDay), at.Add(zoneDay))
		for d := zoneStep; d <= zoneReach; d += zoneStep {
			list = append(list, at.Add(-d), at.Add(d))
		}
	}
	return list
}
