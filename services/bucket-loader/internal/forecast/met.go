package forecast

import "hash/maphash"

// mostMoved is how many minutes lie at most between two rows of one entry. A slow writer repeats its entry in a later bucket, and the audit of the
// schedules does so; what follows from both may lie in two buckets again.
const mostMoved = 5

// maxMet is how many hashes of a generation are kept, some 40 MiB; there are two generations. What comes after them may be counted twice.
const maxMet = 1_000_000

var seed = maphash.MakeSeed()

// met holds the schedules that were followed from a bucket that was read a moment ago, by their jobs, and the executions that were counted, as
// hashes: another row of theirs is passed over. It holds those of the last mostMoved minutes of rows, and of up to twice as many.
type met struct {
	since           int64
	latest, earlier map[uint64]struct{}
}

// turn says which minute is read next.
func (m *met) turn(minute int64) {
	if m.latest == nil || minute-m.since >= mostMoved {
		m.earlier, m.latest, m.since = m.latest, map[uint64]struct{}{}, minute
	}
}

func (m *met) add(id string) {
	if len(m.latest) < maxMet {
		m.latest[maphash.String(seed, id)] = struct{}{}
	}
}

// has may be wrong for one in 10¹³ that were not met.
func (m *met) has(id string) bool {
	h := maphash.String(seed, id)
	_, latest := m.latest[h]
	_, earlier := m.earlier[h]
	return latest || earlier
}
