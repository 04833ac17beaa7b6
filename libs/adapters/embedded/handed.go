package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
)

// Fires are in memory, but that they were published is written: the attempts of a batch, in one value, which is deleted once all of them are
// done. The next process finds a record of each that is not, without holder or start. So an occurrence that was taken in time counts as such
// when its entry is taken again, as it would if its fire were still there (decision 45).

const (
	// handedFor is for how long after its publication a fire of an earlier process is known at a start.
	handedFor = 7 * 24 * time.Hour
	// notedWithin is how long it takes until what was published begins to be synced, with whatever else was written by then.
	notedWithin = 25 * time.Millisecond
)

// handedBatch is a batch of fires whose attempts are written under a key, and where it ends in each partition.
type handedBatch struct {
	number int64
	ends   [logPartitions]int64
}

// note writes which attempts are published. It is synced in a moment; nobody waits for it (decision 5).
func (l *Log) note(t *topic, records []dispatch.Message) (b handedBatch, err error) {
	v := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixMilli()))
	for _, r := range records {
		if f, ok := r.Decoded.(*job.Fire); ok {
			v = text(binary.BigEndian.AppendUint32(text(v, f.ExecutionID), uint32(f.Attempt)), f.DefinitionID)
		}
	}
	t.handed++
	b.number = t.handed
	err = l.db.setLater(handedKey(b.number), v)
	select {
	case l.noted <- struct{}{}:
	default: // a sync is coming
	}
	return b, err
}

// syncNotes syncs what note wrote.
func (l *Log) syncNotes() {
	for {
		select {
		case <-l.noted:
		case <-l.stop:
			return
		}
		select {
		case <-time.After(notedWithin):
		case <-l.stop:
			return
		}
		_ = l.db.sync() // it does not fail unless the process ends
	}
}

// forget returns the first and the last of the batches that are done with, if there are any.
func (t *topic) forget(committed map[int]int64) (first, last int64, ok bool) {
	for len(t.batches) > 0 {
		for p, end := range t.batches[0].ends {
			if committed[p] < end {
				return first, last, ok
			}
		}
		if last = t.batches[0].number; !ok {
			first, ok = last, true
		}
		t.batches = t.batches[1:]
	}
	return first, last, ok
}

// unnote deletes what was written of batches.
func (l *Log) unnote(first, last int64) error {
	if first == last {
		return l.db.deleteLater(handedKey(first))
	}
	return l.db.deleteRangeLater(handedKey(first), handedKey(last+1))
}

// lastHanded returns the number of the last batch that is noted, 0 if there is none.
func (db *DB) lastHanded() (number int64, err error) {
	prefix := []byte{tableHanded}
	it, err := db.pebble.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return 0, err
	}
	if it.Last() {
		number = offsetOf(it.Key())
	}
	return number, errors.Join(it.Error(), it.Close())
}

// loadHanded makes records of what earlier processes had published and not done, the last first, and no more than are kept. What says
// nothing new is deleted, so that many starts leave no more behind than one.
func (r *Records) loadHanded() error {
	prefix := []byte{tableHanded}
	it, err := r.db.pebble.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return fmt.Errorf("embedded: load published attempts: %w", err)
	}
	var idle [][]byte
	for ok := it.Last(); ok && err == nil; ok = it.Prev() {
		before := r.released.len()
		if err = r.loadBatch(it.Value()); r.released.len() == before {
			idle = append(idle, bytes.Clone(it.Key()))
		}
	}
	err = errors.Join(err, it.Error(), it.Close())
	for _, k := range idle {
		if err == nil {
			err = r.db.deleteLater(k)
		}
	}
	if err != nil {
		return fmt.Errorf("embedded: load published attempts: %w", err)
	}
	return nil
}

func (r *Records) loadBatch(v []byte) error {
	cut := errors.New("a batch is cut short")
	if len(v) < 8 {
		return cut
	}
	if r.openedAt.Sub(time.UnixMilli(int64(binary.BigEndian.Uint64(v)))) > handedFor {
		return nil
	}
	for v = v[8:]; len(v) > 0 && r.released.len() < r.max; {
		id, rest, ok := bytes.Cut(v, []byte{0})
		if !ok || len(rest) < 4 {
			return cut
		}
		key := attempts.Key{ExecutionID: string(id), Attempt: int(binary.BigEndian.Uint32(rest))}
		definition, following, _ := bytes.Cut(rest[4:], []byte{0})
		if _, ok := r.records[key]; !ok {
			r.records[key] = &attempts.Record{Exists: true, Released: true, DefinitionID: string(definition)}
			r.released.push(key, r.openedAt)
		}
		v = following
	}
	return nil
}
