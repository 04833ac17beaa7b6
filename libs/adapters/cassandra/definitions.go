package cassandra

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

// PutDefinition implements jobstore.Jobs. The first definition of a job says where its history lies as a one-shot, which may go on until
// HistoryTTL after it was superseded, and is kept for as long after that.
func (s *JobStore) PutDefinition(ctx context.Context, jobID string, d job.Definition) error {
	keep := jobstore.HistoryTTL
	if d.Schedule.Type == job.ScheduleOneShot && job.FirstDefinition(jobID, d.ID) {
		keep *= 2
	}
	q := s.session.Query("INSERT INTO definitions (job_id, definition_id, row) VALUES (?, ?, ?) USING TTL ?", jobID, d.ID, wire.MarshalDefinition(&d),
		int(keep.Seconds()))
	return failed("definition", q.Idempotent(true).ExecContext(ctx))
}

// Definition implements jobstore.Jobs.
func (s *JobStore) Definition(
	ctx context.Context, jobID, definitionID string,
) (d job.Definition, endsAt time.Time, err error) {
	it := s.session.Query("SELECT row FROM definitions WHERE job_id = ? AND definition_id >= ?", jobID, definitionID).
		Idempotent(true).IterContext(ctx)
	found := false
	var row []byte
	for it.Scan(&row) {
		other, err := wire.UnmarshalDefinition(row)
		switch {
		case err != nil:
			return d, endsAt, errors.Join(err, it.Close())
		case other.ID == definitionID:
			d, found = other, true
		case endsAt.IsZero() || other.EffectiveAt.Before(endsAt):
			endsAt = other.EffectiveAt
		}
		row = nil
	}
	if err = it.Close(); err == nil && !found {
		err = jobstore.ErrNotFound
	}
	return d, endsAt, failed("definition", err)
}

// Definitions implements jobstore.Jobs.
func (s *JobStore) Definitions(ctx context.Context, jobID, before string, limit int) (list []job.Definition, err error) {
	it := s.session.Query("SELECT row FROM definitions WHERE job_id = ? AND definition_id < ? ORDER BY definition_id DESC LIMIT ?", jobID, before, limit).
		Idempotent(true).IterContext(ctx)
	var row []byte
	for it.Scan(&row) {
		d, err := wire.UnmarshalDefinition(row)
		if err != nil {
			return nil, errors.Join(err, it.Close())
		}
		list = append(list, d)
		row = nil
	}
	return list, failed("definitions", it.Close())
}
