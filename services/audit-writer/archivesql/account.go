package archivesql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/job"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

// Told is what the account of a job tells of one instant of its schedule.
type Told struct {
	JobID     string
	NominalAt time.Time
	// State is that of the account. Attempts is how many attempts are on record, 0 where the instant was skipped with others.
	State    string
	Attempts int
}

// DifferenceKind is where something is missing.
type DifferenceKind string

// The kinds.
const (
	// MissingJob: the archive tells of a job that nobody deleted, and that is not listed.
	MissingJob DifferenceKind = "job"
	// MissingHistory: the archive has more of an instant than the account tells.
	MissingHistory DifferenceKind = "history"
	// MissingArchive: the account tells more of an instant than the archive has.
	MissingArchive DifferenceKind = "archive"
	// MissingRecords: the log had records between two objects that no object has.
	MissingRecords DifferenceKind = "object"
)

// Difference is one thing that is missing. NominalAt is zero if it is about a job as a whole, JobID is "" if it is about objects.
type Difference struct {
	Kind      DifferenceKind
	JobID     string
	NominalAt time.Time
	// Told and Archived are how many attempts the account and the archive have.
	Told, Archived int
	Reason         string
}

// Account holds what the accounts of jobs tell against what the archive has of the same instants. Both are kept in a temporary SQLite database
// on disk, so that memory does not grow with them. First the jobs and what is told of them are added, then the archive is read, which knows by
// then all that they told of.
type Account struct {
	// From and To bound the instants, To is not one of them.
	From, To time.Time
	// Tenant is what the archive has as tenant_id; with "" it is the tenant of the jobs that are added.
	Tenant string
	// Only is set if not all jobs of the tenant were added, so that a job is not missing because it was not.
	Only bool
	// Objects and Events are how many were read, Newest is when the newest of these events was appended to the log.
	Objects, Events int
	Newest          time.Time

	dir        string
	db         *sql.DB
	conn       *sql.Conn
	statements map[string]*sql.Stmt
	// read are the names of the objects that were read, objects those of them that say where in the log they lie. compacted is set if others do not.
	read      map[string]bool
	objects   []heldObject
	compacted bool
}

// accountTables is what is compared. Instants are in milliseconds.
const accountTables = `
CREATE TABLE jobs (job TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE told (job TEXT, at INTEGER, state TEXT, attempts INTEGER, PRIMARY KEY (job, at)) WITHOUT ROWID;
CREATE TABLE attempts (job TEXT, at INTEGER, attempt INTEGER, tenant TEXT, called INTEGER, PRIMARY KEY (job, at, attempt)) WITHOUT ROWID;
CREATE TABLE runs (job TEXT, first INTEGER, last INTEGER, PRIMARY KEY (job, first, last)) WITHOUT ROWID;
CREATE TABLE changed (job TEXT PRIMARY KEY, tenant TEXT, removed INTEGER) WITHOUT ROWID`

// NewAccount returns one of which nothing is known yet. It must be closed.
func NewAccount(ctx context.Context, from, to time.Time) (b *Account, err error) {
	b = &Account{From: from.Truncate(time.Millisecond), To: to.Truncate(time.Millisecond), statements: map[string]*sql.Stmt{}, read: map[string]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if b.dir, err = os.MkdirTemp("", "minutehand-audit-"); err != nil {
		return b, err
	}
	b.db, err = sql.Open("sqlite", "file:"+filepath.Join(b.dir, "account.db")+"?_pragma=journal_mode(OFF)&_pragma=synchronous(OFF)&_pragma=temp_store(FILE)")
	if err != nil {
		return b, err
	}
	if b.conn, err = b.db.Conn(ctx); err != nil {
		return b, err
	}
	if _, err = b.conn.ExecContext(ctx, accountTables); err != nil {
		return b, err
	}
	_, err = b.conn.ExecContext(ctx, "BEGIN") // until the first differences are asked for
	return b, err
}

// Close removes the database.
func (b *Account) Close() error {
	var errs []error
	for _, s := range b.statements {
		errs = append(errs, s.Close())
	}
	if b.conn != nil {
		errs = append(errs, b.conn.Close())
	}
	if b.db != nil {
		errs = append(errs, b.db.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}

// insert carries out a statement that adds a row.
func (b *Account) insert(ctx context.Context, statement string, values ...any) (err error) {
	s := b.statements[statement]
	if s == nil {
		if s, err = b.conn.PrepareContext(ctx, statement); err != nil {
			return err
		}
		b.statements[statement] = s
	}
	_, err = s.ExecContext(ctx, values...)
	return err
}

// Job adds a job that is there.
func (b *Account) Job(ctx context.Context, id string) error {
	return b.insert(ctx, "INSERT OR IGNORE INTO jobs VALUES (?)", id)
}

// Add adds what is told of an instant.
func (b *Account) Add(ctx context.Context, t Told) error {
	return b.insert(ctx, "INSERT OR IGNORE INTO told VALUES (?, ?, ?, ?)", t.JobID, t.NominalAt.UnixMilli(), t.State, t.Attempts)
}

// columns are those that Read asks for, in this order.
func (b *Account) columns() []string {
	return []string{"event_type", "trigger", "tenant_id", "job_id", "nominal_at", "attempt", "skipped_from", "skipped_to", "operation", "log_offset", "outcome", "appended_at"}
}

// Read reads the archive of a range, which must reach from the day of From to the present; what it has read before, it does not read again.
// progress, if not nil, is called after each object.
func (b *Account) Read(ctx context.Context, a archive.Archive, r Range, progress func(done, all int)) error {
	if err := r.Validate(); err != nil {
		return err
	}
	names, err := r.Objects(ctx, a)
	if err != nil {
		return err
	}
	for i, name := range names {
		if b.read[name] {
			continue
		}
		held := heldObject{objectName: objectName{name: name}}
		o, err := a.Open(ctx, name)
		if err != nil {
			return err
		}
		err = auditwriter.Scan(o, b.columns(), func(v []any) error {
			b.Events++
			if at, ok := v[11].(time.Time); ok && at.After(b.Newest) {
				b.Newest = at
			}
			if offset, ok := v[9].(int64); ok {
				held.next = max(held.next, offset+1)
			}
			return b.event(ctx, v)
		})
		if err := errors.Join(err, o.Close()); err != nil {
			return fmt.Errorf("%s: %w; minutehand archive verify looks at every object", name, err)
		}
		if held.objectName, err = parseName(name); err == nil {
			b.objects = append(b.objects, held)
		}
		b.compacted = b.compacted || err != nil // it holds records of many places
		b.read[name] = true
		if b.Objects++; progress != nil {
			progress(i+1, len(names))
		}
	}
	return nil
}

// event adds a row of the archive, if it is about an instant of the account or about a job.
func (b *Account) event(ctx context.Context, v []any) error {
	text := func(i int) string {
		s, _ := v[i].(string)
		return s
	}
	instant := func(i int) int64 {
		at, ok := v[i].(time.Time)
		if !ok {
			return 0
		}
		return at.UnixMilli()
	}
	from, to := b.From.UnixMilli(), b.To.UnixMilli()
	tenant, id := text(2), text(3)
	switch at := instant(4); job.EventType(text(0)) {
	case job.EventAttempt:
		if job.Trigger(text(1)) == job.TriggerSchedule && at >= from && at < to {
			// One that was not called may be of a job that was deleted long ago: that is on record when its instant comes.
			called := !slices.Contains([]job.OutcomeKind{job.OutcomeCancelled, job.OutcomeSkipped}, job.OutcomeKind(text(10)))
			return b.insert(ctx, "INSERT INTO attempts VALUES (?, ?, ?, ?, ?) ON CONFLICT (job, at, attempt) DO UPDATE SET called = max(called, excluded.called)", id, at, v[5], tenant, called)
		}
	case job.EventSkipped:
		if first, last := instant(6), instant(7); last >= from && first < to {
			return b.insert(ctx, "INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", id, first, last)
		}
	case job.EventChange:
		if strings.HasPrefix(id, job.JobPrefix) && !job.OfSettings(id) {
			return b.insert(ctx, "INSERT INTO changed VALUES (?, ?, ?) ON CONFLICT (job) DO UPDATE SET removed = max(removed, excluded.removed)",
				id, tenant, text(8) == removes)
		}
	}
	return nil
}

// removes is the operation of the API that takes a job away.
const removes = "deleteJob"

// heldObject is an object and the offset behind its last record.
type heldObject struct {
	objectName
	next int64
}

// between returns which records are missing between objects of a log partition.
func between(objects []heldObject) (missing []Difference) {
	slices.SortFunc(objects, func(a, b heldObject) int {
		return cmp.Or(cmp.Compare(a.log, b.log), cmp.Compare(a.partition, b.partition), cmp.Compare(a.first, b.first), cmp.Compare(a.name, b.name))
	})
	next := int64(0)
	for i, o := range objects {
		same := i > 0 && o.log == objects[i-1].log && o.partition == objects[i-1].partition
		if same && o.first > next {
			missing = append(missing, Difference{Kind: MissingRecords, Reason: fmt.Sprintf(
				"Records %d to %d of partition %d are missing before %s.", next, o.first-1, o.partition, o.name)})
		}
		if next = max(next, o.next); !same {
			next = o.next
		}
	}
	return missing
}

// differences are the statements that find them: kind, job, instant (0 for none), attempts told, attempts archived. What the archive has, the
// history has had before; what the history has, the archive is about to have. An attempt that follows another one tells of that, too: it may have
// been called after the account was read.
const differences = `
WITH archived AS (SELECT job, at, count(*) AS attempts, max(attempt) AS last FROM attempts GROUP BY job, at),
ours AS (SELECT DISTINCT tenant FROM changed WHERE job IN (SELECT job FROM jobs) UNION SELECT DISTINCT tenant FROM attempts WHERE job IN (SELECT job FROM jobs)),
known AS (
  SELECT job, tenant, 0 AS removed FROM attempts WHERE called
  UNION ALL SELECT job, tenant, removed FROM changed
)
SELECT 'job', job, 0, 0, 0 FROM known
WHERE NOT ?1 AND CASE ?2 WHEN '' THEN tenant IN (SELECT tenant FROM ours) ELSE tenant = ?2 END AND job NOT IN (SELECT job FROM jobs)
GROUP BY job HAVING max(removed) = 0
UNION ALL
SELECT 'history', a.job, a.at, coalesce(t.attempts, 0), a.attempts FROM archived a JOIN jobs j ON j.job = a.job LEFT JOIN told t ON t.job = a.job AND t.at = a.at
WHERE t.state IS NULL OR t.state <> 'skipped' AND a.attempts > t.attempts
UNION ALL
SELECT 'archive', t.job, t.at, max(t.attempts, coalesce(a.last, 0)), coalesce(a.attempts, 0) FROM told t LEFT JOIN archived a ON a.job = t.job AND a.at = t.at
WHERE max(t.attempts, coalesce(a.last, 0)) > coalesce(a.attempts, 0) OR t.state IN ('succeeded', 'dead', 'cancelled', 'skipped') AND a.attempts IS NULL
AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.job = t.job AND t.at BETWEEN r.first AND r.last)
ORDER BY 2, 3`

// Differences calls each for everything that is missing somewhere, in the order of jobs and instants, and then for records that are missing
// between objects, where no day is compacted (then archive verify tells of them). What is told of an execution that has ended a moment ago may
// not be in the archive yet, and what was changed since not in what was told: the caller reads again, and asks again.
func (b *Account) Differences(ctx context.Context, each func(d Difference) error) (err error) {
	if _, err := b.conn.ExecContext(ctx, "COMMIT"); err != nil {
		return err
	}
	defer func() {
		_, e := b.conn.ExecContext(context.WithoutCancel(ctx), "BEGIN")
		err = errors.Join(err, e)
	}()
	rows, err := b.conn.QueryContext(ctx, differences, b.Only, b.Tenant)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var d Difference
		var at int64
		if err := rows.Scan(&d.Kind, &d.JobID, &at, &d.Told, &d.Archived); err != nil {
			return err
		}
		if at != 0 {
			d.NominalAt = time.UnixMilli(at).UTC()
		}
		switch d.Kind {
		case MissingJob:
			d.Reason = "The archive tells of this job, which nobody deleted, and there is no such job."
		case MissingHistory:
			d.Reason = fmt.Sprintf("The archive has %s, the history %d.", attemptsOf(d.Archived), d.Told)
		default:
			d.Reason = fmt.Sprintf("The history has %s, the archive %d.", attemptsOf(d.Told), d.Archived)
			if d.Told == 0 {
				d.Reason = "The history tells that it was skipped with others, the archive does not."
			}
		}
		if err := each(d); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if b.compacted {
		return nil
	}
	for _, d := range between(b.objects) {
		if err := each(d); err != nil {
			return err
		}
	}
	return nil
}

func attemptsOf(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}
