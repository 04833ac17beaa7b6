package embed

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/sdk"
	"github.com/minutehand/minutehand/libs/sdk/worker"
)

type invoice struct {
	Customer string `json:"customer"`
}

func TestTaskRunsAtItsInstantWithItsPayload(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var r record
		s, stop := newFolder(t).open(time.Second, func(s *Scheduler) {
			Handle(s, "invoice", func(_ context.Context, _ *worker.Task, i invoice) error { r.add(i.Customer); return nil })
		})
		defer stop()
		began := time.Now().Truncate(time.Millisecond)
		if _, err := s.In(t.Context(), 90*time.Second, "invoice", invoice{"early"}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.At(t.Context(), began.Add(20*time.Minute), "invoice", invoice{"late"}); err != nil {
			t.Fatal(err)
		}
		rest(21 * time.Minute)
		if !slices.Equal(r.seen, []string{"early", "late"}) {
			t.Fatalf("it ran %q", r.seen)
		}
		for i, want := range []time.Duration{90 * time.Second, 20 * time.Minute} {
			if late := r.at[i].Sub(began.Add(want)); late < 0 || late > time.Second {
				t.Errorf("%s ran %s late", r.seen[i], late)
			}
		}
	})
}

func TestScheduleOfAHandlerThatIsNotThereIsAcceptedWithAWarning(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log logged
		f := newFolder(t)
		f.log = &log
		s, stop := f.open(time.Second, func(s *Scheduler) {
			Handle(s, "greet", func(context.Context, *worker.Task, string) error { return nil })
			// Not yet seen by the API, because Run has not begun.
			_, in := s.In(t.Context(), time.Hour, "greet", "world")
			_, every := s.Every(t.Context(), "hourly", time.Hour, "greet", "world")
			if err := errors.Join(in, every); err != nil {
				t.Fatal(err)
			}
		})
		defer stop()
		if text := log.String(); text != "" {
			t.Errorf("it warns of what will be served: %s", text)
		}
		_, in := s.In(t.Context(), 0, "gret", "world")
		_, cron := s.Cron(t.Context(), "daily", "@daily", "weep", "world")
		if err := errors.Join(in, cron); err != nil {
			t.Fatal(err)
		}
		text := log.String()
		if strings.Count(text, "accepted with a warning") != 2 || !strings.Contains(text, "handler=gret") || !strings.Contains(text, "handler=weep") || !strings.Contains(text, "reason=\"No worker of the pool") {
			t.Errorf("it logs %q", text)
		}
	})
}

// logged is a log that several may write to.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestWhatWasScheduledOutlivesTheProgram(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var r record
		handlers := func(s *Scheduler) {
			Handle(s, "greet", func(_ context.Context, _ *worker.Task, name string) error { r.add(name); return nil })
		}
		f := newFolder(t)
		s, stop := f.open(time.Second, handlers)
		if _, err := s.In(t.Context(), time.Hour, "greet", "world"); err != nil {
			t.Fatal(err)
		}
		stop()
		rest(2 * time.Hour) // nobody is there when it is due
		_, stop = f.open(time.Second, handlers)
		defer stop()
		rest(2 * time.Minute)
		if !slices.Equal(r.seen, []string{"world"}) {
			t.Errorf("it ran %q", r.seen)
		}
	})
}

func TestScheduleOfAKeyIsKeptUntilTheProgramAsksForAnother(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var r record
		f := newFolder(t)
		var ids []string
		start := func(expression string) (stop func()) {
			s, stop := f.open(time.Second, func(s *Scheduler) {
				Handle(s, "report", func(_ context.Context, _ *worker.Task, _ invoice) error { r.add(expression); return nil })
			})
			id, err := s.Cron(t.Context(), "nightly", expression, "report", invoice{"all"})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
			return stop
		}
		version := func() string {
			s, stop := f.open(time.Second, func(s *Scheduler) {
				Handle(s, "other", func(context.Context, *worker.Task, string) error { return nil })
			})
			defer stop()
			var h http.Header
			if _, err := s.Client().GetJob(t.Context(), "key:nightly", sdk.Header(&h)); err != nil {
				t.Fatal(err)
			}
			return h.Get("ETag")
		}
		start("0 3 * * *")()
		first := version()
		start("0 3 * * *")()
		if again := version(); again != first {
			t.Errorf("the same schedule changed the job from %s to %s", first, again)
		}
		stop := start("*/15 * * * *")
		rest(31 * time.Minute)
		stop()
		if !slices.Equal(r.seen, []string{"*/15 * * * *", "*/15 * * * *"}) || ids[0] != ids[1] || ids[1] != ids[2] {
			t.Errorf("the jobs are %q, and ran %q", ids, r.seen)
		}
	})
}

func TestScheduleThatWasCancelledIsMadeAgainOnlyWhenItIsAnother(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, stop := newFolder(t).open(time.Second, func(s *Scheduler) {
			Handle(s, "report", func(context.Context, *worker.Task, string) error { return nil })
		})
		defer stop()
		every := func(d time.Duration) string {
			id, err := s.Every(t.Context(), "hourly", d, "report", "all")
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		first := every(time.Hour)
		if _, err := s.Client().CancelJob(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if again := every(time.Hour); again != first {
			t.Errorf("what somebody cancelled is there again as %s", again)
		}
		if other := every(2 * time.Hour); other == first {
			t.Error("another schedule is still the cancelled one")
		}
	})
}

func TestNextAttemptGoesOnFromTheLastCheckpoint(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var r record
		s, stop := newFolder(t).open(time.Second, func(s *Scheduler) {
			Handle(s, "count", func(ctx context.Context, task *worker.Task, most int) error {
				next := 0
				if _, err := task.Progress(&next); err != nil {
					return err
				}
				for ; next < most; next++ {
					r.add(string(rune('a' + next)))
					time.Sleep(time.Minute) // more than the heartbeat timeout
					if next == 2 && task.Attempt < 3 {
						panic("lost its way")
					}
					if err := task.Checkpoint(ctx, next+1); err != nil {
						return err
					}
				}
				task.SetResult(map[string]int{"counted": most})
				return nil
			})
		})
		defer stop()
		id, err := s.In(t.Context(), 0, "count", 5, retrying(5))
		if err != nil {
			t.Fatal(err)
		}
		rest(15 * time.Minute)
		if !slices.Equal(r.seen, []string{"a", "b", "c", "c", "c", "d", "e"}) {
			t.Errorf("it counted %q", r.seen)
		}
		x := execution(t, s, id)
		if last := x.Attempts[len(x.Attempts)-1]; x.State != "succeeded" || len(x.Attempts) != 3 || last.ResponseBody != `{"counted":5}` {
			t.Errorf("the execution is %s after %+v", x.State, x.Attempts)
		}
	})
}

func TestFailureSaysWhatTheNextAttemptIs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var r record
		s, stop := newFolder(t).open(time.Second, func(s *Scheduler) {
			Handle(s, "never", func(context.Context, *worker.Task, string) error {
				r.add("never")
				return worker.Permanent(errors.New("no such customer"))
			})
			Handle(s, "typed", func(context.Context, *worker.Task, int) error { r.add("typed"); return nil })
			Handle(s, "later", func(_ context.Context, task *worker.Task, _ string) error {
				r.add("later")
				if task.Attempt == 1 {
					return worker.RetryAfter(2*time.Minute, errors.New("busy"))
				}
				return nil
			})
		})
		defer stop()
		jobs := map[string]string{}
		for _, handler := range []string{"never", "typed", "later"} {
			id, err := s.In(t.Context(), 0, handler, "text", retrying(5))
			if err != nil {
				t.Fatal(err)
			}
			jobs[handler] = id
			rest(time.Minute)
		}
		rest(5 * time.Minute)
		if !slices.Equal(r.seen, []string{"never", "later", "later"}) {
			t.Fatalf("it ran %q", r.seen)
		}
		if pause := r.at[2].Sub(r.at[1]); pause < 2*time.Minute || pause > 3*time.Minute {
			t.Errorf("the next attempt came after %s", pause)
		}
		for handler, state := range map[string]string{"never": "dead", "typed": "dead", "later": "succeeded"} {
			if x := execution(t, s, jobs[handler]); x.State != state {
				t.Errorf("the execution of %s is %s", handler, x.State)
			}
		}
	})
}

func TestContextOfACancelledTaskEndsWithinASecond(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var r record
		var id string
		s, stop := newFolder(t).open(time.Second, func(s *Scheduler) {
			Handle(s, "hang", func(ctx context.Context, task *worker.Task, _ string) error {
				id = task.ExecutionID
				<-ctx.Done()
				r.add(context.Cause(ctx).Error())
				return ctx.Err()
			})
		})
		defer stop()
		job, err := s.In(t.Context(), 0, "hang", "", retrying(5))
		if err != nil {
			t.Fatal(err)
		}
		rest(time.Minute)
		asked := time.Now()
		if _, err := s.Client().CancelExecution(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		rest(time.Minute)
		if !slices.Equal(r.seen, []string{worker.ErrCancelled.Error()}) || r.at[0].Sub(asked) > time.Second {
			t.Errorf("it was told %q after %s", r.seen, r.at[0].Sub(asked))
		}
		if x := execution(t, s, job); x.State != "cancelled" {
			t.Errorf("the execution is %s", x.State)
		}
	})
}

func TestWorkerThatEndsGivesBackWhatItDoesNotComplete(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var r record
		f := newFolder(t)
		s, stop := f.open(10*time.Second, func(s *Scheduler) {
			Handle(s, "work", func(ctx context.Context, task *worker.Task, d int) error {
				select {
				case <-time.After(time.Duration(d) * time.Second):
					r.add("done")
					return nil
				case <-ctx.Done():
					r.add(context.Cause(ctx).Error())
					return ctx.Err()
				}
			})
		})
		for _, seconds := range []int{5, 3600} {
			if _, err := s.In(t.Context(), 0, "work", seconds); err != nil {
				t.Fatal(err)
			}
		}
		rest(2 * time.Second)
		stop()
		if !slices.Equal(r.seen, []string{"done", worker.ErrDrained.Error()}) {
			t.Fatalf("it ended with %q", r.seen)
		}
		_, stop = f.open(time.Second, func(s *Scheduler) {
			Handle(s, "work", func(_ context.Context, task *worker.Task, _ int) error {
				if task.Attempt != 1 {
					t.Errorf("what was given back is attempt %d", task.Attempt)
				}
				r.add("again")
				return nil
			})
		})
		defer stop()
		rest(10 * time.Minute)
		if len(r.seen) != 3 {
			t.Errorf("it ended with %q", r.seen)
		}
	})
}

func TestClosingLetsWhatRunsEndFirst(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var r record
		f := newFolder(t)
		s, _ := f.open(time.Minute, func(s *Scheduler) {
			Handle(s, "work", func(context.Context, *worker.Task, struct{}) error {
				time.Sleep(10 * time.Second)
				r.add("done")
				return nil
			})
		})
		id, err := s.In(t.Context(), 0, "work", nil)
		if err != nil {
			t.Fatal(err)
		}
		rest(2 * time.Second)
		if err := s.Close(); err != nil || !slices.Equal(r.seen, []string{"done"}) {
			t.Errorf("it is closed after %q, %v", r.seen, err)
		}
		if _, err := s.In(t.Context(), 0, "work", nil); !errors.Is(err, errClosed) {
			t.Errorf("what is scheduled after that fails with %v", err)
		}
		if err := s.Run(t.Context()); !errors.Is(err, errClosed) {
			t.Errorf("running it again fails with %v", err)
		}
		s, stop := f.open(time.Second, func(s *Scheduler) {
			Handle(s, "work", func(context.Context, *worker.Task, struct{}) error { r.add("again"); return nil })
		})
		defer stop()
		rest(time.Minute)
		if x := execution(t, s, id); x.State != "succeeded" || len(r.seen) != 1 {
			t.Errorf("the execution is %s after %q", x.State, r.seen)
		}
	})
}
