package embedded

import (
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
)

// packed holds outcomes of which only what dedupe and retries need is kept, oldest first. Each takes a hundred bytes, in memory
// that the garbage collector does not scan.
type packed struct {
	chunks []*chunk
	// head is the number of the oldest that is kept, next that of the next one; a chunk begins with a multiple of chunkOutcomes.
	head, next uint64
	numbers    map[[attempts.DigestBytes]byte]uint64
}

// chunkOutcomes is how many outcomes are stored together, and freed as one when all of them are forgotten.
const chunkOutcomes = 4096

type chunk struct {
	digests [chunkOutcomes][attempts.DigestBytes]byte
	at      [chunkOutcomes]int64 // when each was stored, in milliseconds
	ends    [chunkOutcomes]uint32
	text    []byte
}

func (p *packed) len() int { return int(p.next - p.head) }

func (p *packed) add(k attempts.Key, rec *attempts.Record, at time.Time) {
	if p.next%chunkOutcomes == 0 || len(p.chunks) == 0 {
		p.chunks = append(p.chunks, &chunk{})
	}
	c, i := p.chunks[len(p.chunks)-1], p.next%chunkOutcomes
	c.digests[i], c.at[i] = attempts.Digest(k), at.UnixMilli()
	c.text = append(c.text, attempts.Pack(rec.Token, rec.Outcome)...)
	c.ends[i] = uint32(len(c.text))
	if p.numbers == nil {
		p.numbers = map[[attempts.DigestBytes]byte]uint64{}
	}
	p.numbers[c.digests[i]] = p.next
	p.next++
}

// find returns what is left of an attempt's record.
func (p *packed) find(k attempts.Key) (*attempts.Record, bool) {
	if p.len() == 0 {
		return nil, false
	}
	n, ok := p.numbers[attempts.Digest(k)]
	if !ok {
		return nil, false
	}
	c, i := p.chunks[n/chunkOutcomes-p.head/chunkOutcomes], n%chunkOutcomes
	begin := uint32(0)
	if i > 0 {
		begin = c.ends[i-1]
	}
	o, token, err := attempts.Unpack(string(c.text[begin:c.ends[i]]))
	if err != nil {
		panic(err) // Pack produced it
	}
	return &attempts.Record{Exists: true, DefinitionID: o.DefinitionID, Token: token, Outcome: &o}, true
}

// oldest returns when the oldest was stored.
func (p *packed) oldest() time.Time { return time.UnixMilli(p.chunks[0].at[p.head%chunkOutcomes]) }

// drop forgets the oldest.
func (p *packed) drop() {
	c, i := p.chunks[0], p.head%chunkOutcomes
	if p.numbers[c.digests[i]] == p.head {
		delete(p.numbers, c.digests[i])
	}
	p.head++
	if p.head%chunkOutcomes == 0 {
		p.chunks = append([]*chunk(nil), p.chunks[1:]...)
	}
	if p.len() == 0 {
		p.numbers = nil // a map never shrinks
	}
}
