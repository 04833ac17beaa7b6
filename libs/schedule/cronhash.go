package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
)

// lastHashedDay is the greatest day of the month that H picks on its own: every month has it.
const lastHashedDay = 28

// hashed parses H, H(a-b) and each of them with a step. Every H of a field uses the same hash, so H(0-29),H(30-59) fires twice an
// hour, half an hour apart.
func (p *fieldParser) hashed(item string) {
	if p.which == fieldYear {
		p.fail("write the years; H is for the other fields.")
		return
	}
	base, stepText, stepped := strings.Cut(item, "/")
	lo, hi := p.min, p.max
	if p.which == fieldDom {
		hi = lastHashedDay
	}
	if base != "H" {
		var ok bool
		if lo, hi, ok = p.hashRange(base); !ok {
			return
		}
	}
	count := min(hi-lo+1, p.period()) // the days 0-7 are seven
	step := count                     // so that one value is set
	if stepped {
		var ok bool
		if step, ok = p.step(stepText, count); !ok {
			return
		}
	}
	p.spread = true
	p.run(lo+int(hashOf(p.name, p.jobID)%uint64(step)), lo+count-1, step)
}

// hashRange parses H(a-b). hi is not less than lo, and above the greatest value if need be.
func (p *fieldParser) hashRange(base string) (lo, hi int, ok bool) {
	inner, opened := strings.CutPrefix(base, "H(")
	inner, closed := strings.CutSuffix(inner, ")")
	first, last, ranged := strings.Cut(inner, "-")
	if !opened || !closed || !ranged {
		p.fail("use H alone or with a range in brackets, and perhaps a step after a slash.")
		return 0, 0, false
	}
	if lo, ok = p.value(first); !ok {
		return 0, 0, false
	}
	if hi, ok = p.value(last); !ok {
		return 0, 0, false
	}
	lo, hi = p.unwrap(lo, hi)
	return lo, hi, true
}

// hashOf returns the hash of a job id for one field. It is a cryptographic hash, because the low bits of simpler ones are related
// from field to field: with FNV, the minute modulo 4 would reveal the hour modulo 4. Stored jobs depend on it, and so on the names
// in ruleOf: another hash would move every job that uses H.
func hashOf(fieldName, jobID string) uint64 {
	sum := sha256.Sum256([]byte(fieldName + "\x00" + jobID))
	return binary.BigEndian.Uint64(sum[:])
}
