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

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

const (
	// historyShardsSetting is the name of the setting that says over how many shards the one-shots' history of a minute is spread: all
	// numbers that it had, the present one last, with commas between them. 0 is by week, as all other history; so is no setting.
	historyShardsSetting = "history-shards"
	// maxHistoryShards bounds a number, and maxShardCounts how many there may be.
	maxHistoryShards, maxShardCounts = 4096, 8
	// shardsFor is how long a process uses the numbers that it read: for so long it may not see, after there is another, what others write.
	// They are used for longer where they cannot be read within shardsAgain; then it tries again after as long.
	shardsFor, shardsAgain = 10 * time.Second, time.Second
)

// ErrHistoryShards means: the number of shards cannot be that.
var ErrHistoryShards = errors.New("shards of the history")

// historyShards is what a process knows of the setting.
type historyShards struct {
	mu            sync.Mutex
	counts        []int
	known, asking bool
	goodTo        time.Time
}

// shardCounts returns all numbers of shards that there ever were, the present one last. Once they are known nobody waits for them but who
// asks for them again, and not for long: they are right to write by, and all that was written by them is found.
func (s *History) shardCounts(ctx context.Context) ([]int, error) {
	h := &s.shards
	h.mu.Lock()
	counts, known := h.counts, h.known
	if known && (h.asking || time.Now().Before(h.goodTo)) {
		h.mu.Unlock()
		return counts, nil
	}
	h.asking = true
	h.mu.Unlock()
	began := time.Now()
	within := ctx
	if known {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, shardsAgain)
		defer cancel()
	}
	text, err := NewSettings(s.Store).Setting(within, historyShardsSetting)
	var read []int
	if err == nil {
		read, err = parseShards(text)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asking = false
	switch {
	case err == nil:
		h.counts, h.known, h.goodTo = read, true, began.Add(shardsFor)
	case h.known:
		h.goodTo = time.Now().Add(shardsAgain)
	default:
		return nil, err
	}
	return h.counts, nil
}

func parseShards(text []byte) (counts []int, err error) {
	if len(text) == 0 {
		return nil, nil
	}
	for field := range strings.SplitSeq(string(text), ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 0 || n > maxHistoryShards {
			return nil, fmt.Errorf("cassandra: setting %s is %q: %w", historyShardsSetting, text, ErrHistoryShards)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// now returns the present one of the numbers of shards.
func now(counts []int) int {
	if len(counts) == 0 {
		return 0
	}
	return counts[len(counts)-1]
}

// SpreadHistory sets over how many shards the one-shots' history of a minute is spread from now on; 0 keeps it by week. What was written
// before stays where it lies, and is found there by every process that knows of shards.
func (s *Store) SpreadHistory(ctx context.Context, shards int) error {
	settings := NewSettings(s)
	old, err := settings.Setting(ctx, historyShardsSetting)
	if err != nil {
		return err
	}
	counts, err := parseShards(old)
	if err != nil || now(counts) == shards {
		return err
	}
	counts = append(slices.DeleteFunc(counts, func(n int) bool { return n == shards }), shards)
	if shards < 0 || shards > maxHistoryShards || len(counts) > maxShardCounts {
		return fmt.Errorf("cassandra: %w: want a number of 0 to %d, and at most %d different ones (%s and %d)", ErrHistoryShards,
			maxHistoryShards, maxShardCounts, old, shards)
	}
	texts := make([]string, len(counts))
	for i, n := range counts {
		texts[i] = strconv.Itoa(n)
	}
	return settings.SwapSetting(ctx, historyShardsSetting, old, []byte(strings.Join(texts, ",")))
}

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

// merged returns the events of several places in the order in which a job's history is read. One that was recorded again, after the number
// of shards had changed, is there once.
func merged(lists [][]job.Event) []job.Event {
	events := slices.Concat(lists...)
	slices.SortStableFunc(events, func(a, b job.Event) int {
		atA, executionA := placeOf(&a)
		atB, executionB := placeOf(&b)
		return cmp.Or(atB.Compare(atA), cmp.Compare(executionA, executionB), cmp.Compare(a.Entry.Attempt, b.Entry.Attempt), cmp.Compare(a.ID, b.ID))
	})
	return slices.CompactFunc(events, func(a, b job.Event) bool { return a.ID == b.ID })
}

// placeOf returns where an event lies in the history of its job.
func placeOf(e *job.Event) (at time.Time, executionID string) {
	if e.Type == job.EventSkipped {
		return e.Skipped.From, job.ScheduleExecutionID(e.Entry.JobID, e.Skipped.From)
	}
	return e.Entry.NominalAt, e.Entry.ExecutionID
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
