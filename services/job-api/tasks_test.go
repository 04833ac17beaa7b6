package jobapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/wire"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// told counts what is published, and keeps the last of it.
type told struct {
	dispatch.Log
	records int
	last    dispatch.Message
}

func (l *told) Publish(_ context.Context, _ string, records []dispatch.Message) error {
	l.records += len(records)
	l.last = records[len(records)-1]
	return nil
}

// dies is a hot tier that does not answer any more when a task is to be removed.
type dies struct{ pools.Queue }

func (dies) Remove(context.Context, pools.Pool, string, job.Fence, int64) (bool, error) {
	return false, errors.New("connection refused")
}

// waiting lets a task wait that a tenant's job has given to a pool, as an executor does.
func (s *server) waiting(incarnation func(of string) string) attempts.Key {
	s.t.Helper()
	return s.waitingAs("exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1893492000000", incarnation)
}

func (s *server) waitingAs(id string, incarnation func(of string) string) attempts.Key {
	s.t.Helper()
	now := job.Instant(time.Now())
	fire := &job.Fire{
		Entry: job.Entry{
			Locator: job.Locator{ExecutionID: id, Attempt: 1, DueAt: now},
			JobID:   "job_01M7ZJW5E6D77SAJPXRW35C2CA", WrittenAt: now, Tenant: job.DefaultTenant,
		},
		Target: job.Target{Kind: job.TargetPool, Pool: "work", Handler: "do", Timeout: time.Hour, Heartbeat: 30 * time.Second},
	}
	memory, err := s.deps.Records.Memory(s.t.Context(), fire.JobID)
	if err != nil {
		s.t.Fatal(err)
	}
	task := &pools.Task{Fire: fire, Holder: attempts.Holder{Name: "task"}, Incarnation: incarnation(memory.Incarnation), KnownSince: now}
	key := attempts.KeyOf(&fire.Entry)
	_, held, err := s.deps.Records.Acquire(s.t.Context(), key, task.Holder, now, now.Add(5*time.Minute))
	if err := errors.Join(err, s.deps.Pools.Add(s.t.Context(), task, now)); err != nil || !held {
		s.t.Fatal(held, err)
	}
	return key
}

// handed is a task as a worker gets it.
type handed struct {
	ID    string `json:"task_id"`
	Token string `json:"fencing_token"`
}

// poll fetches tasks.
func (s *server) poll() (tasks []handed) {
	s.t.Helper()
	return s.pollAs("w", "poll-0001")
}

func (s *server) pollAs(worker, id string) (tasks []handed) {
	s.t.Helper()
	w := s.do(http.MethodPost, "/pools/work/poll", `{"poll_id":"`+id+`","worker":"`+worker+`","handlers":["do"]}`)
	var answer struct {
		Tasks []handed `json:"tasks"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusOK {
		s.t.Fatalf("the poll was answered %d: %s", w.Code, w.Body)
	}
	return answer.Tasks
}

// Otherwise the worker would repeat the end to a hot tier that may be back without the task, and be told that it is lost, although it succeeded.
func TestEndThatIsOnTheLogIsAnsweredAlthoughItsTaskCannotBeRemoved(t *testing.T) {
	log := &told{}
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log, d.Pools = log, dies{d.Pools} })
	s.waiting(func(of string) string { return of })
	tasks := s.poll()
	if len(tasks) != 1 {
		t.Fatalf("%d tasks were handed out", len(tasks))
	}
	w := s.do(http.MethodPost, "/pools/work/tasks/"+tasks[0].ID+"/complete", `{"fencing_token":"`+tasks[0].Token+`"}`)
	if w.Code != http.StatusNoContent || log.records != 1 {
		t.Errorf("the end was answered %d with %d records on the log: %s", w.Code, log.records, w.Body)
	}
}

// goneLog is a log that takes nothing.
type goneLog struct{ dispatch.Log }

func (goneLog) Publish(context.Context, string, []dispatch.Message) error {
	return errors.New("connection refused")
}

// The hot tier may lose the outcome, too, before its entry leads to it: then nobody would publish what a worker was answered. (Seed 1500232 of
// the simulation.)
func TestEndWhoseTaskIsLostIsAnsweredOnceItIsOnRecord(t *testing.T) {
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = goneLog{} })
	s.owned()
	s.waiting(func(of string) string { return of })
	task, pool := s.poll()[0], pools.Pool{Tenant: job.DefaultTenant, Name: "work"}
	answer := func(call, token string, status int, when string) {
		t.Helper()
		w := s.do(http.MethodPost, "/pools/work/tasks/"+task.ID+"/"+call, `{"fencing_token":"`+token+`"}`)
		if w.Code != status || (status == http.StatusServiceUnavailable) != (w.Header().Get("Retry-After") != "") {
			t.Errorf("%s %s was answered %d: %s", call, when, w.Code, w.Body)
		}
	}
	leases, err := s.deps.Pools.Leases(t.Context(), pool, []string{task.ID})
	if err != nil || leases[0] == nil {
		t.Fatal(leases, err)
	}
	l := leases[0]
	answer("fail", task.Token, http.StatusServiceUnavailable, "while the log is away")
	if removed, err := s.deps.Pools.Remove(t.Context(), pool, task.ID, l.Fence, pools.AnyNumber); err != nil || !removed {
		t.Fatal(removed, err)
	}
	answer("fail", task.Token, http.StatusServiceUnavailable, "after the task is lost")
	answer("complete", task.Token, http.StatusConflict, "after the task is lost")
	records, err := s.deps.Records.Lookup(t.Context(), []attempts.Key{attempts.KeyOf(&l.Fire.Entry)})
	if err != nil || records[0].Outcome == nil {
		t.Fatal(records, err)
	}
	ref, err := job.ParseExecutionID(l.Fire.ExecutionID)
	if err != nil {
		t.Fatal(err)
	}
	l.Fire.NominalAt, l.Fire.Trigger = ref.NominalAt, job.TriggerSchedule
	event := job.AttemptEvent(l.Fire, l.Fire.Target.Ref(), *records[0].Outcome, time.Now())
	if err := s.deps.History.Record(t.Context(), jobstore.Unencoded(&event)); err != nil {
		t.Fatal(err)
	}
	answer("fail", task.Token, http.StatusNoContent, "once it is on record")
	answer("complete", task.Token, http.StatusConflict, "once another end is on record")
	answer("fail", task.Token[:len(task.Token)-1]+"f", http.StatusConflict, "by another worker")
}

// Who was told to stop, and failed or gave its task back, has ended it as cancelled, and is answered the same when it asks again.
func TestRepeatedEndOfACancelledTaskIsAnsweredAsBefore(t *testing.T) {
	s := newServer(t, nil)
	s.waiting(func(of string) string { return of })
	task, pool := s.poll()[0], pools.Pool{Tenant: job.DefaultTenant, Name: "work"}
	leases, err := s.deps.Pools.Leases(t.Context(), pool, []string{task.ID})
	if err != nil || leases[0] == nil {
		t.Fatal(leases, err)
	}
	l := leases[0]
	ref, err := job.ParseExecutionID(l.Fire.ExecutionID)
	if err != nil {
		t.Fatal(err)
	}
	l.Fire.NominalAt, l.Fire.Trigger = ref.NominalAt, job.TriggerSchedule
	event := job.AttemptEvent(l.Fire, l.Fire.Target.Ref(), job.Outcome{Kind: job.OutcomeCancelled, Fence: l.Fence, Disposition: job.DispositionCancelled}, time.Now())
	_, err = s.deps.Pools.Remove(t.Context(), pool, task.ID, l.Fence, pools.AnyNumber)
	if err := errors.Join(err, s.deps.History.Record(t.Context(), jobstore.Unencoded(&event))); err != nil {
		t.Fatal(err)
	}
	for call, status := range map[string]int{"fail": http.StatusNoContent, "release": http.StatusNoContent, "complete": http.StatusConflict} {
		w := s.do(http.MethodPost, "/pools/work/tasks/"+task.ID+"/"+call, `{"fencing_token":"`+task.Token+`"}`)
		if w.Code != status {
			t.Errorf("%s was answered %d: %s", call, w.Code, w.Body)
		}
	}
}

// Otherwise it would come again only when that hold is over, after five minutes.
func TestTaskThatIsJudgedAgainIsHeldByNobody(t *testing.T) {
	s := newServer(t, nil)
	key := s.waiting(func(string) string { return "of a Redis that is gone" })
	if tasks := s.poll(); len(tasks) > 0 {
		t.Fatalf("%d tasks were handed out of which the hot tier may have forgotten the end", len(tasks))
	}
	found, err := s.deps.Records.Lookup(t.Context(), []attempts.Key{key})
	if err != nil || found[0].Alive(time.Now()) {
		t.Errorf("the attempt is held: %+v, %v", found, err)
	}
}

// What a worker has goes on, and a poll that is repeated has what it had.
func TestTasksThatWaitAreNotHandedOutWhileTheirJobsAreHeld(t *testing.T) {
	for _, c := range []struct{ name, hold string }{{"everything", `{}`}, {"a label", `{"label":"team=a"}`}} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newServer(t, nil)
				row := job.Job{
					ID: "job_01M7ZJW5E6D77SAJPXRW35C2CA", Tenant: job.DefaultTenant, Status: job.StatusActive, Version: 1, Labels: map[string]string{"team": "a"},
					CreatedAt: time.Now(), UpdatedAt: time.Now(),
				}
				must(t, s.jobs.Create(t.Context(), row, false))
				s.waiting(func(of string) string { return of })
				had := s.poll()
				if len(had) != 1 {
					t.Fatalf("%d tasks were handed out before the pause", len(had))
				}
				s.answer(http.StatusOK, http.MethodPost, "/dispatch/pause", c.hold)
				time.Sleep(heldWithin)
				if again := s.poll(); len(again) != 1 || again[0] != had[0] {
					t.Errorf("a poll that is repeated gets %v, and had %v", again, had)
				}
				w := s.do(http.MethodPost, "/pools/work/tasks/"+had[0].ID+"/release", `{"fencing_token":"`+had[0].Token+`"}`)
				if w.Code != http.StatusNoContent {
					t.Fatalf("release was answered %d: %s", w.Code, w.Body)
				}
				key := s.waiting(func(of string) string { return of })
				if tasks := s.pollAs("w", "poll-0002"); len(tasks) > 0 {
					t.Fatalf("%d tasks were handed out while they are held", len(tasks))
				}
				found, err := s.deps.Records.Lookup(t.Context(), []attempts.Key{key})
				must(t, err)
				state, err := s.deps.Pools.Show(t.Context(), pools.Pool{Tenant: job.DefaultTenant, Name: "work"}, time.Now())
				must(t, err)
				// What is held by a label goes back to its entry, which the scheduler-worker holds; otherwise it waits where it is.
				waits := len(state.Waiting) > 0
				if byLabel := c.name == "a label"; waits == byLabel || found[0].Alive(time.Now()) == byLabel {
					t.Errorf("it waits in the pool: %t, and the attempt is held: %t", waits, found[0].Alive(time.Now()))
				}
				s.answer(http.StatusOK, http.MethodPost, "/dispatch/resume", `{}`)
				time.Sleep(heldWithin)
				if c.name == "a label" {
					s.waiting(func(of string) string { return of })
				}
				if tasks := s.pollAs("w", "poll-0003"); len(tasks) != 1 {
					t.Errorf("%d tasks were handed out after the end of the hold", len(tasks))
				}
			})
		})
	}
}

// A process took the task and died before it began. The poll that is repeated may not begin it while it is held.
func TestTaskThatWasTakenBeforeAPauseDoesNotBeginInIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.owned()
		s.waiting(func(of string) string { return of })
		pool := pools.Pool{Tenant: job.DefaultTenant, Name: "work"}
		taken, err := s.deps.Pools.Take(t.Context(), pool, pools.Take{Poll: "poll-0001.0", Handlers: []string{"do"}, Most: 1, Now: time.Now()})
		if must(t, err); len(taken.Tasks) != 1 {
			t.Fatalf("%d tasks were taken", len(taken.Tasks))
		}
		s.answer(http.StatusOK, http.MethodPost, "/dispatch/pause", `{}`)
		time.Sleep(heldWithin)
		if tasks := s.poll(); len(tasks) > 0 {
			t.Error("it began")
		}
	})
}

// The first task of the poll has to be judged again, so the second one is handed out in another round, and that answer is lost.
func TestRepeatedPollHasWhatItHadInALaterRound(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = &told{} })
		s.owned()
		same := func(of string) string { return of }
		s.waiting(func(string) string { return "of a Redis that is gone" })
		s.waitingAs("exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1893492000001", same)
		had := s.poll()
		if len(had) != 1 {
			t.Fatalf("%d tasks were handed out", len(had))
		}
		s.waitingAs("exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1893492000002", same)
		for range 2 {
			if again := s.beside(0, nil).poll(); len(again) != 1 || again[0] != had[0] {
				t.Errorf("it gets %v, and had %v", again, had)
			}
		}
		// A request that comes when its worker has ended the task gets nothing: nobody would do it.
		if status := s.tell(had[0], "complete"); status != http.StatusNoContent {
			t.Errorf("the end was answered %d", status)
		}
		if late := s.poll(); len(late) > 0 {
			t.Errorf("a poll that comes late gets %v", late)
		}
	})
}

// rows are jobs that cannot be read while they are away.
type rows struct {
	jobstore.Jobs
	away bool
}

func (r *rows) GetMany(ctx context.Context, ids []string) (map[string]*job.Job, error) {
	if r.away {
		return nil, errors.New("the store does not answer")
	}
	return r.Jobs.GetMany(ctx, ids)
}

func TestRepeatedPollHasWhatHasBegunWhileLabelsCannotBeRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := &rows{}
		s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { store.Jobs, d.Jobs = d.Jobs, store })
		s.waiting(func(of string) string { return of })
		had := s.poll()
		s.answer(http.StatusOK, http.MethodPost, "/dispatch/pause", `{"label":"team=a"}`)
		time.Sleep(heldWithin)
		store.away = true
		if again := s.poll(); len(had) != 1 || len(again) != 1 || again[0] != had[0] {
			t.Errorf("it gets %v, and had %v", again, had)
		}
	})
}

// heldWithin is the time within which a hold takes effect.
const heldWithin = 2 * time.Second

// slowChecks answers last checks two seconds after it has accepted them.
type slowChecks struct{ attempts.Records }

func (r slowChecks) Start(ctx context.Context, k attempts.Key, t job.Token, c attempts.Check) (job.Fence, *job.State, error) {
	fence, stop, err := r.Records.Start(ctx, k, t, c)
	time.Sleep(2 * time.Second)
	return fence, stop, err
}

// Otherwise nobody would end what was begun for the other definition's entry.
func TestTaskThatIsJudgedAgainBeforeAWorkerHasItIsStillAnotherDefinitionsRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var records attempts.Records
		s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { records, d.Records = d.Records, slowChecks{d.Records} })
		const other = "def_01M7ZJW5E6D77SAJPXRZ65CMZZ"
		e := &job.Entry{
			Locator: job.Locator{ExecutionID: "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1893492000000", Attempt: 1, DefinitionID: other},
			JobID:   "job_01M7ZJW5E6D77SAJPXRW35C2CA",
		}
		memory, err := records.Memory(t.Context(), e.JobID)
		must(t, err)
		rec, _, err := records.Acquire(t.Context(), attempts.KeyOf(e), attempts.Holder{Name: "another", Start: 7}, time.Now(), time.Now().Add(time.Minute))
		must(t, err)
		_, _, err = records.Start(t.Context(), attempts.KeyOf(e), rec.Token, attempts.Check{Entry: e, Incarnation: memory.Incarnation})
		must(t, err)
		must(t, records.Release(t.Context(), attempts.KeyOf(e), rec.Token, true, other))
		key := s.waiting(func(of string) string { return of })
		if tasks := s.poll(); len(tasks) > 0 {
			t.Fatalf("%d tasks were handed out by a check that may be older than a stop", len(tasks))
		}
		found, err := records.Lookup(t.Context(), []attempts.Key{key})
		if err != nil || found[0].Alive(time.Now()) || !found[0].Running || found[0].DefinitionID != other {
			t.Errorf("the attempt is %+v, %v; want it released and begun for %s", found, err, other)
		}
	})
}

// The owner of the partition removes the entry half a second after its instant: a worker may have given the task back by then.
func TestTaskThatIsGivenBackAtOnceIsFiredAgainWhenItsEntryIsGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.service.Run(ctx) }()
		defer func() {
			stop()
			must(t, <-ended)
		}()
		loader := coord.Owner{Role: coord.RoleLoader, Epoch: 1}
		must(t, s.deps.Hot.SetEpoch(t.Context(), loader))
		must(t, s.deps.Hot.SetHorizon(t.Context(), loader, time.Now().Add(time.Hour)))
		hot := func(e *job.Entry) bool {
			gone, err := s.deps.Hot.Absent(t.Context(), []*job.Entry{e})
			must(t, err)
			return len(gone) == 0
		}
		for name, c := range map[string]struct {
			late, taken bool // whether the entry is removed after the task was given back, and somebody has the attempt then
			want        bool
		}{
			"removed before": {want: true}, "removed after": {late: true, want: true}, "fired again by its owner": {late: true, taken: true},
		} {
			e := job.Entry{Locator: job.Locator{DueAt: job.Instant(time.Now())}}
			key := s.waiting(func(of string) string { return of })
			task := s.poll()[0]
			e.ExecutionID, e.Attempt = key.ExecutionID, key.Attempt
			must(t, s.deps.Hot.Add(t.Context(), []job.Entry{e}))
			if !c.late {
				must(t, s.deps.Hot.Remove(t.Context(), []*job.Entry{&e}))
			}
			if w := s.do(http.MethodPost, "/pools/work/tasks/"+task.ID+"/release", `{"fencing_token":"`+task.Token+`"}`); w.Code != http.StatusNoContent {
				t.Fatalf("%s: answered %d: %s", name, w.Code, w.Body)
			}
			if c.late {
				time.Sleep(1500 * time.Millisecond)
				must(t, s.deps.Hot.Remove(t.Context(), []*job.Entry{&e}))
			}
			now := time.Now()
			if c.taken {
				_, held, err := s.deps.Records.Acquire(t.Context(), key, attempts.Holder{Name: "another"}, now, now.Add(time.Minute))
				must(t, err)
				if !held {
					t.Fatalf("%s: the attempt is held although it was given back", name)
				}
			}
			time.Sleep(1500 * time.Millisecond)
			if hot(&e) != c.want {
				t.Errorf("%s: in its hot bucket: %t, want %t", name, !c.want, c.want)
			}
			must(t, s.deps.Hot.Remove(t.Context(), []*job.Entry{&e}))
			time.Sleep(2 * time.Minute)
		}
	})
}

// A worker that gives a heartbeat up sends the next one elsewhere. The first may still be under way.
func TestHeartbeatThatComesLateTakesNoProgressBack(t *testing.T) {
	for name, c := range map[string]struct {
		first, late, want string
	}{
		"counted":     {`"progress":"more","sequence":2`, `"progress":"less","sequence":1`, `"more"`},
		"again":       {`"progress":"more","sequence":2`, `"progress":"more","sequence":2`, `"more"`},
		"not counted": {`"progress":"less"`, `"progress":"more"`, `"more"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, nil)
			key := s.waiting(func(of string) string { return of })
			task := s.poll()[0]
			for _, told := range []string{c.first, c.late} {
				if w := s.do(http.MethodPost, "/pools/work/tasks/"+task.ID+"/heartbeat", `{"fencing_token":"`+task.Token+`",`+told+`}`); w.Code != http.StatusOK {
					t.Fatalf("answered %d: %s", w.Code, w.Body)
				}
			}
			kept, err := s.deps.Settings.Items(t.Context(), "progress/"+key.ExecutionID, "", 10)
			if err != nil || len(kept) != 1 || string(kept[0].Value) != c.want {
				t.Errorf("%v: %+v are kept", err, kept)
			}
		})
	}
}

// lateEnd is records that let time pass before an outcome is stored.
type lateEnd struct {
	attempts.Records
	by time.Duration
}

func (r *lateEnd) Finish(ctx context.Context, cs []attempts.Completion, now time.Time) ([]attempts.Completed, error) {
	time.Sleep(r.by)
	return r.Records.Finish(ctx, cs, now)
}

// An end that is stored late may find its task given up, and another worker with it: that one goes on from the progress. (Seed 4068324678 of the
// simulation.)
func TestEndThatComesLateTakesNoProgressAway(t *testing.T) {
	for by, want := range map[time.Duration]int{0: 0, 31 * time.Second: 1} {
		bubble.Test(t, func(t *testing.T) {
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log, d.Records = &told{}, &lateEnd{d.Records, by} })
			key := s.waiting(func(of string) string { return of })
			task := s.poll()[0]
			for _, r := range [][2]string{{"heartbeat", `,"progress":"half"`}, {"complete", ""}} {
				if w := s.do(http.MethodPost, "/pools/work/tasks/"+task.ID+"/"+r[0], `{"fencing_token":"`+task.Token+`"`+r[1]+`}`); w.Code >= 300 {
					t.Fatalf("%s was answered %d: %s", r[0], w.Code, w.Body)
				}
			}
			if kept, err := s.deps.Settings.Items(t.Context(), "progress/"+key.ExecutionID, "", 10); err != nil || len(kept) != want {
				t.Errorf("%v: after an end that took %s, %+v are kept", err, by, kept)
			}
		})
	}
}

// The next heartbeat may come to a job-api whose clock is behind that of the one which handed the task out.
func TestProgressIsKeptAlthoughClocksDiffer(t *testing.T) {
	var ahead time.Duration
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Clock = clock.Ahead(func() time.Duration { return ahead }) })
	key := s.waiting(func(of string) string { return of })
	task := s.poll()[0]
	for n, told := range []string{`"progress":"less","sequence":1`, `"progress":"more","sequence":2`} {
		ahead = time.Duration(-n) * clock.MaxDifference
		if w := s.do(http.MethodPost, "/pools/work/tasks/"+task.ID+"/heartbeat", `{"fencing_token":"`+task.Token+`",`+told+`}`); w.Code != http.StatusOK {
			t.Fatalf("answered %d: %s", w.Code, w.Body)
		}
	}
	if kept, err := s.deps.Settings.Items(t.Context(), "progress/"+key.ExecutionID, "", 10); err != nil || len(kept) != 1 || string(kept[0].Value) != `"more"` {
		t.Errorf("%v: %+v are kept", err, kept)
	}
}

// split returns two servers whose pools do not know of each other, as those of a server of the hot tier that was replaced and of the one in its
// place. The attempts lie elsewhere. One task waits in both.
func split(t *testing.T) (key attempts.Key, one, two *server) {
	one = newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = &told{} })
	two = newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) {
		d.Log, d.Records, d.History, d.Settings = one.deps.Log, one.deps.Records, one.deps.History, one.deps.Settings
	})
	key = one.waiting(func(of string) string { return of })
	two.waiting(func(of string) string { return of })
	return key, one, two
}

// complete tells that a task is done, and returns how that was answered.
func (s *server) complete(task handed) int {
	return s.do(http.MethodPost, "/pools/work/tasks/"+task.ID+"/complete", `{"fencing_token":"`+task.Token+`"}`).Code
}

// Otherwise two workers would have it under one lease of the attempt, and one of them would end it after the other had it under a greater token. (Seed
// 1900072 of the simulation.)
func TestTaskIsHandedOutOnceAlthoughAReplacedServerHasItToo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		key, one, two := split(t)
		has := one.pollAs("w", "poll-0001")
		if len(has) != 1 {
			t.Fatalf("%d tasks were handed out", len(has))
		}
		time.Sleep(attempts.ReplacedFor - time.Second)
		if more := two.pollAs("another", "poll-0002"); len(more) > 0 {
			t.Errorf("it was handed out once more, as %+v after %+v", more, has)
		}
		if again := one.pollAs("w", "poll-0001"); len(again) != 1 || again[0] != has[0] {
			t.Errorf("repeated, the poll was answered %+v, first %+v", again, has)
		}
		if status := one.complete(has[0]); status != http.StatusNoContent {
			t.Errorf("its end was answered %d", status)
		}
		found, err := one.deps.Records.Lookup(t.Context(), []attempts.Key{key})
		if err != nil || found[0].Outcome == nil || found[0].Outcome.Kind != job.OutcomeSucceeded {
			t.Errorf("%+v, %v", found, err)
		}
	})
}

// A pool may have forgotten that a worker has a task. Then it is another one's after a while, and its own no more.
func TestWorkerEndsNoTaskThatWasHandedOutToAnother(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, one, two := split(t)
		before := one.pollAs("w", "poll-0001")
		time.Sleep(attempts.AloneFor)
		later := two.pollAs("another", "poll-0002")
		if len(before) != 1 || len(later) != 1 || later[0].Token <= before[0].Token {
			t.Fatalf("handed out were %+v and %+v", before, later)
		}
		if status := one.complete(before[0]); status != http.StatusConflict {
			t.Errorf("the end of who has lost it was answered %d", status)
		}
		if status := two.complete(later[0]); status != http.StatusNoContent {
			t.Errorf("the end of who has it was answered %d", status)
		}
	})
}

// lateCheck is records that let time pass once before an attempt begins.
type lateCheck struct {
	attempts.Records
	until func()
}

func (r *lateCheck) Start(ctx context.Context, k attempts.Key, t job.Token, c attempts.Check) (job.Fence, *job.State, error) {
	if until := r.until; until != nil {
		r.until = nil
		until()
	}
	return r.Records.Start(ctx, k, t, c)
}

// Who stalls between the lease and the check may find that the task was handed out once more, and must not take it away.
func TestPollThatStalledTakesNoTaskFromAnother(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, one, two := split(t)
		records := &lateCheck{Records: one.deps.Records}
		var has []handed
		records.until = func() {
			time.Sleep(attempts.AloneFor)
			has = two.pollAs("another", "poll-0002")
		}
		slow := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) {
			d.Log, d.Records, d.History, d.Settings, d.Pools = one.deps.Log, records, one.deps.History, one.deps.Settings, one.deps.Pools
		})
		if late := slow.pollAs("w", "poll-0001"); len(late) > 0 || len(has) != 1 {
			t.Fatalf("handed out were %+v, and late %+v", has, late)
		}
		if status := two.complete(has[0]); status != http.StatusNoContent {
			t.Errorf("the end of who has it was answered %d", status)
		}
	})
}

// hooks is a hot tier that does something once: before it releases an attempt, before it removes a task, or after it has bound a lease.
type hooks struct {
	release, remove, bound func()
	// refuses is set if the first release fails.
	refuses bool
}

func once(do *func()) {
	if f := *do; f != nil {
		*do = nil
		f()
	}
}

type hookedRecords struct {
	attempts.Records
	h *hooks
}

func (r hookedRecords) Release(ctx context.Context, k attempts.Key, token job.Token, running bool, definition string) error {
	once(&r.h.release)
	if r.h.refuses {
		r.h.refuses = false
		return errors.New("connection refused")
	}
	return r.Records.Release(ctx, k, token, running, definition)
}

type hookedQueue struct {
	pools.Queue
	h *hooks
}

func (q hookedQueue) Remove(ctx context.Context, p pools.Pool, id string, fence job.Fence, number int64) (bool, error) {
	once(&q.h.remove)
	return q.Queue.Remove(ctx, p, id, fence, number)
}

func (q hookedQueue) Bind(ctx context.Context, p pools.Pool, id string, l *pools.Lease, now time.Time) (bool, error) {
	ok, err := q.Queue.Bind(ctx, p, id, l, now)
	once(&q.h.bound)
	return ok, err
}

// A worker that gets no answer repeats its poll, and another process may answer that while the first gives back what it found too late.
func TestPollThatIsSlowTakesNoTaskFromItsRepetition(t *testing.T) {
	later := func() { time.Sleep(2 * time.Second) }
	for name, c := range map[string]struct {
		when      func(h *hooks, again func())
		slowCheck bool
		told      int
	}{
		"before it removes":          {func(h *hooks, again func()) { h.remove = again }, true, 1},
		"before it releases":         {func(h *hooks, again func()) { h.release = again }, true, 0},
		"after it has bound":         {func(h *hooks, again func()) { h.bound = func() { again(); later() } }, false, 1},
		"before it removes, bound":   {func(h *hooks, again func()) { h.bound, h.remove = later, again }, false, 1},
		"before it releases, bound":  {func(h *hooks, again func()) { h.bound, h.release = later, again }, false, 0},
		"whose release fails":        {func(h *hooks, _ func()) { h.refuses = true }, true, 0},
		"after it was bound, slowly": {func(h *hooks, again func()) { h.bound = func() { later(); again() } }, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				one := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = &told{} })
				server := func(records attempts.Records, queue pools.Queue) *server {
					return newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) {
						d.Log, d.Records, d.History, d.Settings, d.Pools = one.deps.Log, records, one.deps.History, one.deps.Settings, queue
					})
				}
				two := server(one.deps.Records, one.deps.Pools)
				key := one.waiting(func(of string) string { return of })
				var h hooks
				var has []handed
				c.when(&h, func() { has = two.pollAs("w", "poll-0001") })
				records := attempts.Records(hookedRecords{one.deps.Records, &h})
				if c.slowCheck {
					records = slowChecks{records}
				}
				has = append(has, server(records, hookedQueue{one.deps.Pools, &h}).pollAs("w", "poll-0001")...)
				if len(has) != c.told {
					t.Fatalf("handed out were %+v, want %d", has, c.told)
				}
				found, err := one.deps.Records.Lookup(t.Context(), []attempts.Key{key})
				must(t, err)
				for _, task := range has {
					if !found[0].Alive(time.Now()) {
						t.Errorf("another may have what a worker was told: %+v", found[0])
					}
					if status := two.complete(task); status != http.StatusNoContent {
						t.Errorf("the end of who has it was answered %d", status)
					}
				}
				if len(has) == 0 && found[0].Alive(time.Now()) {
					t.Errorf("the attempt of which no worker was told is held: %+v", found[0])
				}
			})
		})
	}
}

// forgotten lets a worker tell of its progress, and then its pool forget that it has the task. What an earlier executor knew of the task waits there.
// It runs in a bubble.
func (s *server) forgotten() attempts.Key {
	s.t.Helper()
	key := s.waiting(func(of string) string { return of })
	task := s.poll()[0]
	path := "/pools/work/tasks/" + task.ID + "/heartbeat"
	if w := s.do(http.MethodPost, path, `{"fencing_token":"`+task.Token+`","progress":"half"}`); w.Code != http.StatusOK {
		s.t.Fatalf("answered %d: %s", w.Code, w.Body)
	}
	pool, ctx := pools.Pool{Tenant: job.DefaultTenant, Name: "work"}, s.t.Context()
	leases, err := s.deps.Pools.Leases(ctx, pool, []string{task.ID})
	if err != nil || leases[0] == nil {
		s.t.Fatalf("%v, %v", leases, err)
	}
	memory, err := s.deps.Records.Memory(ctx, leases[0].Fire.JobID)
	if err != nil {
		s.t.Fatal(err)
	}
	again := &pools.Task{Fire: leases[0].Fire, Holder: attempts.Holder{Name: "task"}, Incarnation: memory.Incarnation, KnownSince: job.Instant(time.Now())}
	_, err = s.deps.Pools.Remove(ctx, pool, task.ID, leases[0].Fence, pools.AnyNumber)
	if err := errors.Join(err, s.deps.Pools.Add(ctx, again, time.Now())); err != nil {
		s.t.Fatal(err)
	}
	time.Sleep(attempts.AloneFor) // until the task can be another worker's
	return key
}

// A pool may lie on another server than the attempts of a job. What it loses, these know.
func TestTaskThatItsPoolForgotComesWithTheProgressOfItsWorker(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		key := s.forgotten()
		w := s.do(http.MethodPost, "/pools/work/poll", `{"poll_id":"poll-0002","worker":"another","handlers":["do"]}`)
		if !strings.Contains(w.Body.String(), `"progress":"half"`) || !strings.Contains(w.Body.String(), key.ExecutionID) {
			t.Errorf("the poll was answered %d: %s", w.Code, w.Body)
		}
	})
}

// The answer to the first poll may be lost. The task waits as one that nobody has had: that a worker had it, only the lease says. (Seed 1701234 of
// the simulation.)
func TestPollThatIsRepeatedIsAnsweredWithTheProgressOfTheWorkerBefore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.forgotten()
		poll := func() string {
			return s.do(http.MethodPost, "/pools/work/poll", `{"poll_id":"poll-0002","worker":"another","handlers":["do"]}`).Body.String()
		}
		if first, repeated := poll(), poll(); !strings.Contains(first, `"progress":"half"`) || repeated != first {
			t.Errorf("the poll was answered %s, and when it was repeated %s", first, repeated)
		}
	})
}

// What a worker has to say of a failure is kept as of a success, and the error says in short what happened.
func TestResultOfAFailureIsKeptBesideItsError(t *testing.T) {
	long := strings.Repeat("x", 20_000)
	for name, c := range map[string]struct {
		body, answer, reason string
		truncated            bool
	}{
		"an error":            {`"error":"no disk"`, "no disk", "the worker reported a failure", false},
		"a result":            {`"result":{"exit_code":3}`, `{"exit_code":3}`, "the worker reported a failure", false},
		"both":                {`"error":"no disk","result":{"exit_code":3}`, `{"exit_code":3}`, "the worker reported a failure: no disk", false},
		"a long result":       {`"error":"no disk","result":"` + long + `"`, `"` + long[:job.MaxResultBytes-1], "the worker reported a failure: no disk", true},
		"a long error":        {`"error":"` + long + `"`, long[:job.MaxResultBytes], "the worker reported a failure", true},
		"a long error beside": {`"error":"` + long + `","result":1`, "1", "the worker reported a failure: " + long[:512], false},
	} {
		t.Run(name, func(t *testing.T) {
			log := &told{}
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = log })
			s.waiting(func(of string) string { return of })
			tasks := s.poll()
			if w := s.do(http.MethodPost, "/pools/work/tasks/"+tasks[0].ID+"/fail", `{"fencing_token":"`+tasks[0].Token+`",`+c.body+`}`); w.Code != http.StatusNoContent {
				t.Fatalf("answered %d: %s", w.Code, w.Body)
			}
			e, err := wire.EventOf(&log.last)
			if err != nil {
				t.Fatal(err)
			}
			o := e.Outcome
			if string(o.ResponseBody) != c.answer || o.ResponseTruncated != c.truncated || o.Error != c.reason || !o.Retryable {
				t.Errorf("answer %.60q (%d bytes, truncated %t), error %.60q", o.ResponseBody, len(o.ResponseBody), o.ResponseTruncated, o.Error)
			}
		})
	}
}

// poolSettings is what is set for a pool in the test of its limits.
const poolSettings = `{"max_running":3,"handlers":[{"name":"do","max_running":1}],"logs_url":"https://logs.example.com/{pool}/{worker}?x={execution_id}.{attempt}&j={job_id}"}`

func TestPoolHandsOutNoMoreThanItsLimits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.waiting(func(of string) string { return of })
		s.answer(http.StatusOK, http.MethodPut, "/pools/work", `{"handlers":[{"name":"do","max_running":0}]}`)
		if tasks := s.poll(); len(tasks) > 0 {
			t.Fatalf("%d tasks were handed out", len(tasks))
		}
		s.answer(http.StatusOK, http.MethodPut, "/pools/work", poolSettings)
		time.Sleep(pools.KnownFor)
		if tasks := s.poll(); len(tasks) != 1 {
			t.Fatalf("%d tasks were handed out", len(tasks))
		}
		shown, _ := s.answer(http.StatusOK, http.MethodGet, "/pools/work", "")
		set, _ := shown["settings"].(map[string]any)
		handler, worker := shown["handlers"].([]any)[0].(map[string]any), shown["workers"].([]any)[0].(map[string]any)
		if set["max_running"] != 3.0 || handler["running"] != 1.0 || worker["logs_url"] != nil || set["updated_at"] == nil {
			t.Errorf("the pool is shown as %v", shown)
		}
		// What is set again changes nothing, and is no change.
		time.Sleep(time.Minute)
		again, _ := s.answer(http.StatusOK, http.MethodPut, "/pools/work", poolSettings)
		if again["updated_at"] != set["updated_at"] {
			t.Errorf("set again: %v", again)
		}
		gone, _ := s.answer(http.StatusOK, http.MethodPut, "/pools/work", `{}`)
		shown, _ = s.answer(http.StatusOK, http.MethodGet, "/pools/work", "")
		if len(gone) > 0 || shown["settings"] != nil {
			t.Errorf("nothing is set, and shown are %v, %v", gone, shown)
		}
		for name, c := range map[string]struct{ body, pointer string }{
			"a handler twice":           {`{"handlers":[{"name":"do","max_running":1},{"name":"do","max_running":2}]}`, "/handlers/1/name"},
			"less than none":            {`{"max_running":-1}`, "/max_running"},
			"another placeholder":       {`{"logs_url":"https://example.com/{host}"}`, "/logs_url"},
			"a brace that is not ended": {`{"logs_url":"https://example.com/{worker"}`, "/logs_url"},
			"a placeholder twice":       {`{"logs_url":"https://example.com/{worker}/{worker}"}`, "/logs_url"},
			"a script":                  {`{"logs_url":"javascript:alert('{worker}')"}`, "/logs_url"},
			"a password":                {`{"logs_url":"https://a:b@example.com/"}`, "/logs_url"},
			"no host":                   {`{"logs_url":"/{worker}"}`, "/logs_url"},
		} {
			w := s.do(http.MethodPut, "/pools/work", c.body)
			if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), `"pointer":"`+c.pointer+`"`) {
				t.Errorf("%s was answered %d: %s", name, w.Code, w.Body)
			}
		}
	})
}
