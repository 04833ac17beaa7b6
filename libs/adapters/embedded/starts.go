package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

// startsAfter is how long an attempt runs at least, and twice that at most, before its start is written to the database. Most calls
// have ended by then.
const startsAfter = 50 * time.Millisecond

// encodeStarted returns the durable form of a record that was started: takeovers, token, holder, definition. Its key is the
// attempt's.
func encodeStarted(rec *attempts.Record) []byte {
	v := make([]byte, 0, 21+len(rec.Holder)+len(rec.DefinitionID))
	v = binary.BigEndian.AppendUint32(v, uint32(rec.Takeovers))
	v = binary.BigEndian.AppendUint64(v, uint64(rec.Token.Counter))
	v = binary.BigEndian.AppendUint64(v, uint64(rec.Token.Start))
	v = append(append(v, rec.Holder...), 0)
	return append(v, rec.DefinitionID...)
}

func decodeStarted(k, v []byte) (attempts.Key, *attempts.Record, error) {
	id, attempt, ok := bytes.Cut(k[1:], []byte{0})
	if !ok || len(attempt) != 4 || len(v) < 20 {
		return attempts.Key{}, nil, errors.New("embedded: started record is cut short")
	}
	holder, definition, _ := bytes.Cut(v[20:], []byte{0})
	return attempts.Key{ExecutionID: string(id), Attempt: int(binary.BigEndian.Uint32(attempt))}, &attempts.Record{
		Exists: true, Running: true, Takeovers: int(binary.BigEndian.Uint32(v)), Holder: string(holder),
		DefinitionID: string(definition),
		Token:        job.Token{Counter: int64(binary.BigEndian.Uint64(v[4:])), Start: int64(binary.BigEndian.Uint64(v[12:]))},
	}, nil
}

// mayHaveKilled reports whether an earlier process may have died of this attempt: it was due before this process opened the store,
// or was deferred since.
func (r *Records) mayHaveKilled(e *job.Entry) bool { return e.Chained || e.DueAt.Before(r.openedAt) }

// forgetStart removes a start from those that are not written, and reports whether it was one of them.
func (r *Records) forgetStart(k attempts.Key) bool {
	for _, of := range r.unwritten {
		if _, ok := of[k]; ok {
			delete(of, k)
			return true
		}
	}
	return false
}

// writeStarts writes the attempts that were started before the last flush and still run.
func (r *Records) writeStarts() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flush = nil
	if r.closed {
		return
	}
	r.writeOldest()
	if len(r.unwritten[0]) > 0 {
		r.flush = time.AfterFunc(startsAfter, r.writeStarts)
	}
}

// writeOldest writes the older of the starts that are not written, and makes the others the older ones.
func (r *Records) writeOldest() {
	if old := r.unwritten[0]; len(old) > 0 {
		b := r.db.pebble.NewBatch()
		defer b.Close()
		for k, rec := range old {
			if rec.Running { // otherwise it was given back uncalled
				_ = b.Set(startedKey(k.ExecutionID, k.Attempt), encodeStarted(rec), nil) // neither fails unless the process ends
			}
		}
		_ = r.db.commitLater(b)
		clear(old)
	}
	r.unwritten[0], r.unwritten[1] = r.unwritten[1], r.unwritten[0]
}

// close writes what is left, before the database is closed.
func (r *Records) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.writeOldest()
	r.writeOldest()
}
