//go:build servers

package cassandra_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/jobstore/jobstoretest"
	"github.com/minutehand/minutehand/schemas"
)

const replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"

// open creates a keyspace of its own.
func open(t *testing.T) *cassandra.Store {
	t.Helper()
	s, _ := openNamed(t)
	return s
}

// openNamed is open, and returns the name of the keyspace.
func openNamed(t *testing.T) (s *cassandra.Store, keyspace string) {
	t.Helper()
	o := cassandra.Options{
		Hosts: []string{servertest.Address(t, "CASSANDRA")}, Keyspace: fmt.Sprintf("test_%d", time.Now().UnixNano()), Timeout: 20 * time.Second,
	}
	for range 2 { // it may be run again
		if err := cassandra.Migrate(t.Context(), o, replication, schemas.Cassandra()); err != nil {
			t.Fatal(err)
		}
	}
	s, err := cassandra.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, o.Keyspace
}

func TestConformance(t *testing.T) {
	s := open(t)
	if err := s.SetUp(t.Context(), 4, job.Minute(time.Now())); err != nil {
		t.Fatal(err)
	}
	t.Run("jobs", func(t *testing.T) {
		jobstoretest.RunJobs(t, func(*testing.T) jobstore.Jobs { return cassandra.NewJobStore(s) })
	})
	t.Run("pending", func(t *testing.T) {
		var stores atomic.Int64
		jobstoretest.RunPending(t, func(t *testing.T) jobstore.Pending {
			p := cassandra.NewPending(s)
			// Each test works above the minutes of the previous ones.
			for partition := range 4 {
				if err := p.Close(t.Context(), partition, job.Minute(time.Now())+200*stores.Load()); err != nil {
					t.Fatal(err)
				}
			}
			stores.Add(1)
			return p
		})
	})
	t.Run("history", func(t *testing.T) { runHistory(t, s) })
	for _, shards := range []int{16, 3, 0} { // each beside what the ones before have left
		t.Run(fmt.Sprintf("history over %d shards", shards), func(t *testing.T) {
			if err := s.SpreadHistory(t.Context(), shards); err != nil {
				t.Fatal(err)
			}
			runHistory(t, s)
		})
	}
}

func runHistory(t *testing.T, s *cassandra.Store) {
	t.Helper()
	jobstoretest.RunHistory(t, func(*testing.T) (jobstore.History, jobstore.Jobs) {
		return cassandra.NewHistory(s), cassandra.NewJobStore(s)
	})
}

func TestSettings(t *testing.T) {
	jobstoretest.RunSettings(t, func(t *testing.T) jobstore.Settings { return cassandra.NewSettings(open(t)) })
}

func TestStoreIsSetUpOnce(t *testing.T) {
	s := open(t)
	for range 2 {
		if err := s.SetUp(t.Context(), 4, 1000); err != nil {
			t.Fatal(err)
		}
	}
	low, err := cassandra.NewPending(s).LowWater(t.Context(), 3)
	if err != nil || low != 999 {
		t.Errorf("low-water mark %d, %v", low, err)
	}
	if err := s.CheckPartitions(t.Context(), 4); err != nil {
		t.Error(err)
	}
	if err := s.CheckPartitions(t.Context(), 8); !errors.Is(err, jobstore.ErrPartitions) {
		t.Errorf("another count gave %v", err)
	}
	if err := s.SetUp(t.Context(), 8, 1000); err == nil {
		t.Error("it was set up for another number of partitions")
	}
}

func TestReplicationThatTheClusterCannotHaveIsRefusedBeforeAnythingIsMade(t *testing.T) {
	o := cassandra.Options{
		Hosts: []string{servertest.Address(t, "CASSANDRA")}, Keyspace: fmt.Sprintf("test_%d", time.Now().UnixNano()), Timeout: 20 * time.Second,
	}
	if _, err := cassandra.Open(o); !errors.Is(err, cassandra.ErrNotMigrated) {
		t.Errorf("without a keyspace Open gave %v", err)
	}
	three := "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"
	for _, wrong := range []string{
		three, "{'class': 'SimpleStrategy', 'replication_factor': 2}", "{'class': 'NetworkTopologyStrategy', 'elsewhere': 1}",
		"{'class': 'SimpleStrategy'}", "three times", "{'class': 'SimpleStrategy', 'replication_factor': 'x'}",
	} {
		if err := cassandra.Migrate(t.Context(), o, wrong, schemas.Cassandra()); !errors.Is(err, cassandra.ErrReplication) {
			t.Errorf("%s gave %v", wrong, err)
		}
	}
	for _, right := range []string{
		"{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}", "{'class':'NetworkTopologyStrategy','datacenter1':'1'}",
		"{'class': 'NetworkTopologyStrategy', 'replication_factor': 1, 'elsewhere': 0}",
	} {
		if err := cassandra.Migrate(t.Context(), o, right, schemas.Cassandra()); err != nil {
			t.Errorf("%s gave %v", right, err)
		}
	}
	err := cassandra.Migrate(t.Context(), o, three, schemas.Cassandra())
	if !errors.Is(err, cassandra.ErrReplication) || !strings.Contains(err.Error(), "replication factor 1 in datacenter1, not replication factor 3") {
		t.Errorf("another replication than the keyspace's gave %v", err)
	}
}

func TestKeyspaceWithoutTablesIsNotMigrated(t *testing.T) {
	o := cassandra.Options{
		Hosts: []string{servertest.Address(t, "CASSANDRA")}, Keyspace: fmt.Sprintf("test_%d", time.Now().UnixNano()), Timeout: 20 * time.Second,
	}
	if err := cassandra.Migrate(t.Context(), o, replication, fstest.MapFS{}); err != nil {
		t.Fatal(err)
	}
	s, err := cassandra.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.CheckPartitions(t.Context(), 4); !errors.Is(err, cassandra.ErrNotMigrated) {
		t.Errorf("without tables the check gave %v", err)
	}
}

// sessionIn opens a session of the test's own, in a keyspace.
func sessionIn(t *testing.T, keyspace string) *gocql.Session {
	t.Helper()
	config := gocql.NewCluster(servertest.Address(t, "CASSANDRA"))
	config.Keyspace, config.Timeout = keyspace, 20*time.Second
	session, err := config.CreateSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	return session
}

// TestRowsOfOneShotsExpire: a job that nobody will ask for gives its disk back, and its place in the listing.
func TestRowsOfOneShotsExpire(t *testing.T) {
	s, keyspace := openNamed(t)
	session := sessionIn(t, keyspace)
	jobs := cassandra.NewJobStore(s)
	const month = int64(jobstore.HistoryTTL / time.Second)
	now := job.Instant(time.Now())
	oneShot := job.Schedule{Type: job.ScheduleOneShot, RunAt: now.Add(10 * 24 * time.Hour)}
	far := job.Schedule{Type: job.ScheduleOneShot, RunAt: now.Add(30 * 365 * 24 * time.Hour)}
	recurring := job.Schedule{Type: job.ScheduleCron, CronExpr: "@daily"}
	for i, c := range []struct {
		name    string
		status  job.Status
		deleted bool
		s       job.Schedule
		want    int64 // seconds; 0 is for ever
	}{
		{"one-shot", job.StatusActive, false, oneShot, month + 10*24*60*60},
		{"paused one-shot", job.StatusPaused, false, oneShot, 0},
		{"one-shot in thirty years", job.StatusActive, false, far, 0},
		{"recurring", job.StatusActive, false, recurring, 0},
		{"cancelled recurring", job.StatusCancelled, false, recurring, 0},
		{"deleted recurring", job.StatusCancelled, true, recurring, month},
	} {
		for _, how := range []string{"created", "created alone", "created with others", "changed from a one-shot", "changed from a recurring one"} {
			t.Run(c.name+" "+how, func(t *testing.T) {
				j := job.Job{
					ID: fmt.Sprintf("job_%d_%s", i, strings.ReplaceAll(how, " ", "_")), Tenant: 7, Status: c.status, Deleted: c.deleted,
					Version: 1, UpdatedAt: now, Definition: job.Definition{ID: "def_1", Schedule: c.s},
				}
				j.Key = j.ID
				before := j
				before.Status, before.Deleted = job.StatusActive, false
				holder := &j
				var err error
				switch how {
				case "created", "created alone":
					err = jobs.Create(t.Context(), j, how == "created alone")
				case "created with others":
					err = jobs.CreateMany(t.Context(), []job.Job{j})
				case "changed from a one-shot":
					before.Definition.Schedule = oneShot
				default:
					before.Definition.Schedule = recurring
				}
				if strings.HasPrefix(how, "changed") {
					holder = &before
				}
				if _, err := jobs.HoldJobKey(t.Context(), *holder, ""); err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(how, "changed") {
					j.Version = 2
					err = errors.Join(jobs.Create(t.Context(), before, false), jobs.Replace(t.Context(), j))
				}
				if err != nil {
					t.Fatal(err)
				}
				for statement, of := range map[string]string{
					"SELECT TTL(row) FROM jobs WHERE job_id = ?":                                "its row",
					"SELECT TTL(version) FROM jobs WHERE job_id = ?":                            "its version",
					"SELECT TTL(job_id) FROM job_keys WHERE tenant_id = '00000007' AND key = ?": "its key",
				} {
					var left *int
					if c.deleted && strings.HasPrefix(how, "changed") && of == "its key" { // it is free again
						continue
					}
					if err := session.Query(statement, j.ID).ScanContext(t.Context(), &left); err != nil {
						t.Fatal(err)
					}
					got, want := int64(0), c.want
					if of == "its key" && how == "changed from a recurring one" { // nothing lets it expire again
						want = 0
					} else if of == "its key" && want > 0 {
						want += 2 * 24 * 60 * 60
					}
					if left != nil {
						got = int64(*left)
					}
					if got > want || got < want-60 {
						t.Errorf("%s expires after %d s, want %d", of, got, want)
					}
				}
			})
		}
	}
	page, _, err := jobs.List(t.Context(), 7, "", 100)
	if err != nil || len(page) != 6*5 {
		t.Errorf("%d jobs are listed, %v", len(page), err)
	}
}

// A row that was inserted for good, and changed to expire, leaves its key behind when its cells have gone.
func TestRowThatHasExpiredIsNotThere(t *testing.T) {
	s, keyspace := openNamed(t)
	session := sessionIn(t, keyspace)
	jobs := cassandra.NewJobStore(s)
	j := job.Job{ID: "job_expired", Tenant: 7, Status: job.StatusActive, Version: 1, Definition: job.Definition{ID: "def_1"}}
	if err := jobs.Create(t.Context(), j, false); err != nil {
		t.Fatal(err)
	}
	if err := session.Query("DELETE version, row FROM jobs WHERE job_id = ?", j.ID).ExecContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, alone := jobs.Get(t.Context(), j.ID)
	_, serial := jobs.GetSerial(t.Context(), j.ID)
	several, err := jobs.GetMany(t.Context(), []string{j.ID})
	if !errors.Is(alone, jobstore.ErrNotFound) || !errors.Is(serial, jobstore.ErrNotFound) || err != nil || len(several) > 0 {
		t.Errorf("it is read: %v, %v, %v, %v", alone, serial, several, err)
	}
	j.Version = 2
	if err := jobs.Replace(t.Context(), j); !errors.Is(err, jobstore.ErrNotFound) {
		t.Errorf("it is replaced: %v", err)
	}
	j.Version = 1
	if err := jobs.Create(t.Context(), j, true); err != nil {
		t.Errorf("another row in its place: %v", err)
	}
	if again, err := jobs.Get(t.Context(), j.ID); err != nil || again.Definition.ID != "def_1" {
		t.Errorf("that is read as %+v, %v", again, err)
	}
}

func TestHistoryIsFoundOnceWhereverItLies(t *testing.T) {
	_, keyspace := openNamed(t)
	var mu sync.Mutex
	var into []string // the tables of history that were written to
	s, err := cassandra.Open(cassandra.Options{
		Hosts: []string{servertest.Address(t, "CASSANDRA")}, Keyspace: keyspace, Timeout: 20 * time.Second,
		Observe: func(r cassandra.Request) {
			mu.Lock()
			defer mu.Unlock()
			if _, table, ok := strings.Cut(r.Statements[0], "INSERT INTO history_"); ok {
				into = append(into, strings.Fields(table)[0])
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	at := job.Instant(time.Now().Add(-time.Hour))
	j := oneShot(at)
	if err := cassandra.NewJobStore(s).Create(t.Context(), j, true); err != nil {
		t.Fatal(err)
	}
	// The first attempt lies by week, as an earlier release wrote it, each other one over another number of shards, and all are recorded again.
	counts := []int{0, 4096, 1, 64, 0, 4096}
	var want []string
	for i, shards := range counts {
		for range 2 { // saying it again changes nothing
			if err := s.SpreadHistory(t.Context(), shards); err != nil {
				t.Fatal(err)
			}
			if err := cassandra.NewHistory(s).Record(t.Context(), events(&j, i+1)); err != nil {
				t.Fatal(err)
			}
			want = append(want, map[bool]string{true: "weeks", false: "minutes"}[shards == 0])
		}
	}
	if !slices.Equal(into, want) {
		t.Errorf("history was written by %v, want %v", into, want)
	}
	history := cassandra.NewHistory(s)
	byJob, err := history.Executions(t.Context(), jobstore.OfJob(&j), jobstore.Cursor{}, at, 100)
	if err != nil || len(byJob) != len(counts) {
		t.Errorf("the job has %d events, %v; want %d", len(byJob), err, len(counts))
	}
	found, err := history.Execution(t.Context(), job.ScheduleExecutionID(j.ID, at))
	if err != nil || len(found) != len(counts) {
		t.Fatalf("the execution has %d events, %v; want %d", len(found), err, len(counts))
	}
	for i := range found {
		if found[i].Entry.Attempt != i+1 {
			t.Errorf("attempt %d comes in place %d", found[i].Entry.Attempt, i+1)
		}
	}
	for _, wrong := range []int{-1, 4097} {
		if err := s.SpreadHistory(t.Context(), wrong); !errors.Is(err, cassandra.ErrHistoryShards) {
			t.Errorf("%d shards gave %v", wrong, err)
		}
	}
}

// One row that cannot be read must not stop all history.
func TestHistoryGoesOnWithoutItsSetting(t *testing.T) {
	s, keyspace := openNamed(t)
	if err := s.SpreadHistory(t.Context(), 16); err != nil {
		t.Fatal(err)
	}
	history := cassandra.NewHistory(s)
	at := job.Instant(time.Now().Add(-time.Hour))
	j := oneShot(at)
	if err := history.Record(t.Context(), events(&j, 1)); err != nil {
		t.Fatal(err)
	}
	session := sessionIn(t, keyspace)
	if err := session.Query("DROP TABLE cluster").ExecContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cassandra.NewHistory(s).Record(t.Context(), events(&j, 1)); err == nil {
		t.Error("history was written by who has never known the number of shards")
	}
	for range 2 { // it asks, and does not find out; then it does not ask
		history.Expire()
		if err := history.Record(t.Context(), events(&j, 2)); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := history.Executions(t.Context(), jobstore.OfJob(&j), jobstore.Cursor{}, at, 10); err != nil || len(found) != 2 {
		t.Errorf("the job has %d events, %v; want 2", len(found), err)
	}
}

// oneShot returns a job that begins as a one-shot.
func oneShot(at time.Time) job.Job {
	id := func(prefix string) string {
		return prefix + ulid.MustNew(ulid.Timestamp(at), ulid.DefaultEntropy()).String()
	}
	return job.Job{
		ID: id(job.JobPrefix), Tenant: 7, Status: job.StatusActive, Version: 1, CreatedAt: at, UpdatedAt: at,
		Definition: job.Definition{ID: id(job.DefinitionPrefix), Schedule: job.Schedule{Type: job.ScheduleOneShot, RunAt: at}},
	}
}

// events returns those of the first attempts of a one-shot.
func events(j *job.Job, attempts int) []jobstore.Recorded {
	var list []*job.Event
	at := j.Definition.Schedule.RunAt
	for attempt := range attempts {
		list = append(list, &job.Event{
			ID: fmt.Sprintf("%s/%d", j.ID, attempt+1), Type: job.EventAttempt, At: at,
			Entry: job.Entry{
				Locator: job.Locator{DueAt: at, ExecutionID: job.ScheduleExecutionID(j.ID, at), Attempt: attempt + 1, DefinitionID: j.Definition.ID},
				JobID:   j.ID, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Plain: true,
			},
			Outcome: job.Outcome{Kind: job.OutcomeFailed, Disposition: job.DispositionFired},
		})
	}
	return jobstore.Unencoded(list...)
}
