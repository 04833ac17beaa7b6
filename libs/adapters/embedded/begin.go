package embedded

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

// Begin implements attempts.Records. Where an earlier process may have died of the attempt, the two steps are taken one by one.
func (r *Records) Begin(
	_ context.Context, k attempts.Key, h attempts.Holder, lapsesAt time.Time, c attempts.Check, keptSince time.Time,
) (fence job.Fence, ok bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, met := r.find(k); met || c.Incarnation != r.db.incarnation || !keptSince.After(r.keptSince) || r.mayHaveKilled(c.Entry) ||
		r.stops[c.Entry.JobID].state.Version != 0 {
		return fence, false, nil
	}
	token := job.Token{Counter: 1, Start: h.Start}
	r.records[k] = &attempts.Record{Exists: true, Holder: h.Name, DefinitionID: h.DefinitionID, LapsesAt: lapsesAt, Token: token}
	if fence, err = r.run(k, r.records[k], c.Entry); err != nil {
		delete(r.records, k)
		return job.Fence{}, false, err
	}
	return fence, true, nil
}
