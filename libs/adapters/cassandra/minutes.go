package cassandra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/wire"
)

const (
	// historyShardsSetting is the name of the setting that says over how many shards the one-shots' history of a minute is spread: all numbers
	// that it ever had, in their order, with commas between them. Without it their history lies by week, as all other.
	historyShardsSetting = "history-shards"
	// DefaultHistoryShards is that number in a new store: with 25,000 events of 500 bytes a second a shard of a minute has 47 MB.
	DefaultHistoryShards = 16
	// maxHistoryShards bounds it, and maxShardCounts how often it may grow.
	maxHistoryShards, maxShardCounts = 4096, 8
	// shardsFor is how long a process uses the numbers that it read. When they grow, it may for so long not see what others write.
	shardsFor = 10 * time.Second
	// minutesAtOnce bounds the minutes of one query.
	minutesAtOnce = 20
)

// ErrHistoryShards means: the number of shards cannot be that.
var ErrHistoryShards = errors.New("shards of the history")

// historyShards is what a process knows of the setting.
type historyShards struct {
	mu     sync.Mutex
	counts []int
	readAt time.Time
}

// shardCounts returns all numbers of shards that there ever were, the present one last; none if history lies by week alone.
func (s *History) shardCounts(ctx context.Context) ([]int, error) {
	s.shards.mu.Lock()
	counts, readAt := s.shards.counts, s.shards.readAt
	s.shards.mu.Unlock()
	began := time.Now()
	if began.Sub(readAt) < shardsFor {
		return counts, nil
	}
	text, err := NewSettings(s.Store).Setting(ctx, historyShardsSetting)
	if err == nil {
		counts, err = parseShards(text)
	}
	if err != nil {
		return nil, err
	}
	s.shards.mu.Lock()
	defer s.shards.mu.Unlock()
	if began.After(s.shards.readAt) {
		s.shards.counts, s.shards.readAt = counts, began
	}
	return counts, nil
}

func parseShards(text []byte) (counts []int, err error) {
	for field := range strings.SplitSeq(string(text), ",") {
		if len(text) == 0 {
			break
		}
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > maxHistoryShards {
			return nil, fmt.Errorf("cassandra: setting %s is %q: %w", historyShardsSetting, text, ErrHistoryShards)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// SpreadHistory sets over how many shards the one-shots' history of a minute is spread from now on. It is found where it lies, if all
// processes know of such shards at all.
func (s *Store) SpreadHistory(ctx context.Context, shards int) error {
	settings := NewSettings(s)
	old, err := settings.Setting(ctx, historyShardsSetting)
	if err != nil {
		return err
	}
	counts, err := parseShards(old)
	if err != nil {
		return err
	}
	if len(counts) > 0 && counts[len(counts)-1] == shards {
		return nil
	}
	if shards < 1 || shards > maxHistoryShards || slices.Contains(counts, shards) || len(counts) == maxShardCounts {
		return fmt.Errorf("cassandra: %w: want a number of 1 to %d that it has not had (%s), and at most %d of them", ErrHistoryShards,
			maxHistoryShards, old, maxShardCounts)
	}
	text := strconv.Itoa(shards)
	if len(old) > 0 {
		text = string(old) + "," + text
	}
	return settings.SwapSetting(ctx, historyShardsSetting, old, []byte(text))
}

// spreadAtFirst is SpreadHistory for a store that was not set up yet. One that an earlier release uses is left as it is: that release would
// not find what lies by minute.
func (s *Store) spreadAtFirst(ctx context.Context) error {
	for _, name := range []string{partitionsSetting, historyShardsSetting} {
		if standing, err := NewSettings(s).Setting(ctx, name); err != nil || len(standing) > 0 {
			return err
		}
	}
	err := s.SpreadHistory(ctx, DefaultHistoryShards)
	if errors.Is(err, jobstore.ErrConflict) { // another one sets it up, too
		return nil
	}
	return err
}

// shardsOf returns the shards in which a job's events may lie.
func (s *History) shardsOf(ctx context.Context, jobID string) ([]int, error) {
	counts, err := s.shardCounts(ctx)
	shards := make([]int, 0, len(counts))
	for _, n := range counts {
		if shard := bucket.Partition(jobID, n); !slices.Contains(shards, shard) {
			shards = append(shards, shard)
		}
	}
	return shards, err
}

// oneShots returns the instants for which a job's row and its superseded definitions are, or were, a one-shot, newest first.
func (s *History) oneShots(ctx context.Context, jobID string) ([]time.Time, error) {
	j, err := NewJobStore(s.Store).Get(ctx, jobID)
	if errors.Is(err, jobstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	definitions := []job.Definition{j.Definition}
	if j.Version > 1 {
		it := s.session.Query("SELECT row FROM definitions WHERE job_id = ?", jobID).Idempotent(true).IterContext(ctx)
		var row []byte
		for it.Scan(&row) {
			d, err := wire.UnmarshalDefinition(row)
			if err != nil {
				return nil, errors.Join(err, it.Close())
			}
			definitions = append(definitions, d)
			row = nil
		}
		if err := it.Close(); err != nil {
			return nil, failed("definitions", err)
		}
	}
	return jobstore.OneShots(definitions...), nil
}

// inMinutes returns what lies by minute of a job.
func (s *History) inMinutes(
	ctx context.Context, jobID string, before jobstore.Cursor, oldest time.Time, limit int,
) (events []job.Event, err error) {
	shards, err := s.shardsOf(ctx, jobID)
	if err != nil || len(shards) == 0 || !job.ValidID(jobID, job.JobPrefix) {
		return nil, err
	}
	instants, err := s.oneShots(ctx, jobID)
	if err != nil {
		return nil, err
	}
	instants = slices.DeleteFunc(instants, func(at time.Time) bool {
		return at.Before(oldest) || !before.Follows(at, job.ScheduleExecutionID(jobID, at))
	})
	for some := range slices.Chunk(instants, minutesAtOnce) { // newest first
		// No instant in between is left out, so a chunk holds all that is newer than the next one.
		page, err := s.events(ctx, s.session.Query("SELECT event FROM history_minutes WHERE shard IN ? AND minute IN ? AND job_id = ?"+
			" AND nominal_ms <= ? AND nominal_ms >= ? PER PARTITION LIMIT ?", shards, minutesOf(some), jobID, some[0].UnixMilli(),
			some[len(some)-1].UnixMilli(), limit))
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(page, comparePlaces)
		if events = append(events, page...); len(events) >= limit {
			break
		}
	}
	return events, nil
}

// minutesOf returns the minutes of instants, each once.
func minutesOf(instants []time.Time) []int64 {
	minutes := make([]int64, len(instants))
	for i, at := range instants {
		minutes[i] = job.Minute(at)
	}
	return slices.Compact(minutes)
}

// comparePlaces orders events as a job's history is read: newest nominal instant first, the events of an execution by attempt.
func comparePlaces(a, b job.Event) int {
	atA, executionA := placeOf(&a)
	atB, executionB := placeOf(&b)
	return cmp.Or(atB.Compare(atA), cmp.Compare(executionA, executionB), cmp.Compare(a.Entry.Attempt, b.Entry.Attempt), cmp.Compare(a.ID, b.ID))
}

// placeOf returns where an event lies in the history of its job.
func placeOf(e *job.Event) (at time.Time, executionID string) {
	if e.Type == job.EventSkipped {
		return e.Skipped.From, job.ScheduleExecutionID(e.Entry.JobID, e.Skipped.From)
	}
	return e.Entry.NominalAt, e.Entry.ExecutionID
}

// forgetMinutes removes what lies by minute of a job.
func (s *History) forgetMinutes(ctx context.Context, jobID string) error {
	shards, err := s.shardsOf(ctx, jobID)
	if err != nil || len(shards) == 0 || !job.ValidID(jobID, job.JobPrefix) {
		return err
	}
	instants, err := s.oneShots(ctx, jobID)
	if err != nil {
		return err
	}
	chunks := slices.Collect(slices.Chunk(minutesOf(instants), minutesAtOnce))
	return run.Each(len(chunks), concurrency, func(i int) error {
		q := s.session.Query("DELETE FROM history_minutes WHERE shard IN ? AND minute IN ? AND job_id = ?", shards, chunks[i], jobID)
		return failed("forget history", q.Idempotent(true).ExecContext(ctx))
	})
}
