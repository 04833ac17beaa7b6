package cassandra

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

// shardsOf returns the shards in which a job's events may lie.
func (s *History) shardsOf(ctx context.Context, jobID string) ([]int, error) {
	counts, err := s.shardCounts(ctx)
	shards := make([]int, 0, len(counts))
	for _, n := range counts {
		if n == 0 {
			continue
		}
		if shard := bucket.Partition(jobID, n); !slices.Contains(shards, shard) {
			shards = append(shards, shard)
		}
	}
	return shards, err
}

// minuteOf returns where events of a job may lie by minute: there are no shards if they cannot.
func (s *History) minuteOf(ctx context.Context, of jobstore.Of) (shards []int, at time.Time, err error) {
	if !of.Updated && of.RunsAt.IsZero() {
		return nil, at, nil
	}
	if shards, err = s.shardsOf(ctx, of.ID); err != nil || len(shards) == 0 || !of.Updated {
		return shards, of.RunsAt, err
	}
	// Definitions of that millisecond only: all others may have left tombstones, which a read from the start would have to pass.
	var from, to ulid.ULID
	_ = from.SetTime(ulid.Timestamp(job.ULIDTime(strings.TrimPrefix(of.ID, job.JobPrefix))))
	_ = to.SetTime(from.Time() + 1) // neither fails before the year 10889
	var row []byte
	err = s.session.Query("SELECT row FROM definitions WHERE job_id = ? AND definition_id >= ? AND definition_id < ? LIMIT 1", of.ID,
		job.DefinitionPrefix+from.String(), job.DefinitionPrefix+to.String()).Idempotent(true).ScanContext(ctx, &row)
	if errors.Is(err, gocql.ErrNotFound) {
		return nil, at, nil
	}
	var first job.Definition
	if err == nil {
		first, err = wire.UnmarshalDefinition(row)
	}
	if err != nil {
		return nil, at, failed("first definition", err)
	}
	if first.Schedule.Type != job.ScheduleOneShot || !job.FirstDefinition(of.ID, first.ID) {
		return nil, at, nil
	}
	return shards, first.Schedule.RunAt, nil
}

// inMinutes returns what lies by minute of a job: the events of one execution.
func (s *History) inMinutes(
	ctx context.Context, of jobstore.Of, before jobstore.Cursor, oldest time.Time, limit int,
) ([]job.Event, error) {
	shards, at, err := s.minuteOf(ctx, of)
	if err != nil || len(shards) == 0 || at.Before(oldest) || !before.Follows(at, job.ScheduleExecutionID(of.ID, at)) {
		return nil, err
	}
	return s.events(ctx, s.session.Query("SELECT event FROM history_minutes WHERE shard IN ? AND minute = ? AND job_id = ? AND nominal_ms = ? PER PARTITION LIMIT ?",
		shards, job.Minute(at), of.ID, at.UnixMilli(), limit))
}

// forgetMinutes removes what lies by minute of a job.
func (s *History) forgetMinutes(ctx context.Context, of jobstore.Of) error {
	shards, at, err := s.minuteOf(ctx, of)
	if err != nil || len(shards) == 0 {
		return err
	}
	q := s.session.Query("DELETE FROM history_minutes WHERE shard IN ? AND minute = ? AND job_id = ?", shards, job.Minute(at), of.ID)
	return failed("forget history", q.Idempotent(true).ExecContext(ctx))
}
