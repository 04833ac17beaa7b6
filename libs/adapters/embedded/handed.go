package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
)

// Fires are in memory, but that they were published is written: the attempts of a batch, in one value, which is deleted once all of them are
// done. The next process finds a record of each that is not, without holder or start. So an occurrence that was taken in time counts as such
// when its entry is taken again, as it would if its fire were still there (decision 45).

// handedFor is for how long it is known what an earlier process had published.
const handedFor = 24 * time.Hour

// handedBatch is a batch of fires whose attempts are written under a key, and where it ends in each partition.
type handedBatch struct {
	number int64
	ends   [logPartitions]int64
}

// note writes which attempts are published. Like a start, it reaches the disk with the next sync.
func (l *Log) note(t *topic, records []dispatch.Message) (b handedBatch, err error) {
	v := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixMilli()))
	for _, r := range records {
		if f, ok := r.Decoded.(*job.Fire); ok {
			v = text(binary.BigEndian.AppendUint32(text(v, f.ExecutionID), uint32(f.Attempt)), f.DefinitionID)
		}
	}
	t.handed++
	b.number = t.handed
	return b, l.db.setLater(handedKey(b.number), v)
}

// forget returns the batches that are done with.
func (t *topic) forget(committed map[int]int64) (done []handedBatch) {
	for len(t.batches) > 0 {
		for p, end := range t.batches[0].ends {
			if committed[p] < end {
				return done
			}
		}
		done = append(done, t.batches[0])
		t.batches = t.batches[1:]
	}
	return done
}

// loadHanded makes records of what earlier processes had published and not done.
func (r *Records) loadHanded(ctx context.Context) error {
	prefix := []byte{tableHanded}
	var old [][]byte
	err := r.db.scan(ctx, prefix, after(prefix), func(k, v []byte) (bool, error) {
		if len(v) < 8 {
			return false, errors.New("embedded: batch of fires is cut short")
		}
		if r.openedAt.Sub(time.UnixMilli(int64(binary.BigEndian.Uint64(v)))) > handedFor {
			old = append(old, bytes.Clone(k))
			return true, nil
		}
		for v = v[8:]; len(v) > 0 && r.released.len() < r.max; {
			id, rest, ok := bytes.Cut(v, []byte{0})
			if !ok || len(rest) < 4 {
				return false, errors.New("embedded: batch of fires is cut short")
			}
			definition, rest2, _ := bytes.Cut(rest[4:], []byte{0})
			key := attempts.Key{ExecutionID: string(id), Attempt: int(binary.BigEndian.Uint32(rest))}
			if _, ok := r.records[key]; !ok {
				r.records[key] = &attempts.Record{Exists: true, Released: true, DefinitionID: string(definition)}
				r.released.push(key, r.openedAt)
			}
			v = rest2
		}
		return true, nil
	})
	for _, k := range old {
		err = errors.Join(err, r.db.deleteLater(k))
	}
	if err != nil {
		return fmt.Errorf("embedded: load published attempts: %w", err)
	}
	return nil
}
