package jobapi_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// cancel lets an execution be cancelled.
func (s *server) cancel(key attempts.Key) {
	s.t.Helper()
	ref, err := job.ParseExecutionID(key.ExecutionID)
	must(s.t, err)
	_, err = s.deps.Records.SetStop(s.t.Context(), ref.JobID, job.State{Version: 2, Status: job.StatusActive, StoppedExecutions: []string{key.ExecutionID}})
	must(s.t, err)
}

// Otherwise a worker that was told that it has lost a task could end it all the same, until a job-api has found that it is silent (I17).
func TestWorkerWhoseLeaseIsOverEndsItsTaskNoMore(t *testing.T) {
	const silent, grace = 30 * time.Second, 10 * time.Second
	for name, c := range map[string]struct {
		stops bool
		after time.Duration
		// first is told before, by the same worker.
		first, what string
		want        int
	}{
		"in time":                         {after: silent - time.Second, what: "complete", want: http.StatusNoContent},
		"silent, and told so":             {after: silent, first: "heartbeat", what: "complete", want: http.StatusConflict},
		"silent":                          {after: silent, what: "complete", want: http.StatusConflict},
		"silent, and fails":               {after: silent, what: "fail", want: http.StatusConflict},
		"silent, and gives it back":       {after: silent, what: "release", want: http.StatusConflict},
		"obeys":                           {stops: true, after: grace - time.Second, what: "fail", want: http.StatusNoContent},
		"told to stop, and told so":       {stops: true, after: grace, first: "heartbeat", what: "complete", want: http.StatusConflict},
		"told to stop":                    {stops: true, after: grace, what: "complete", want: http.StatusConflict},
		"told to stop, and fails":         {stops: true, after: grace, what: "fail", want: http.StatusConflict},
		"told to stop, and gives back":    {stops: true, after: grace, what: "release", want: http.StatusConflict},
		"told to stop, done all the same": {stops: true, after: grace - time.Second, what: "complete", want: http.StatusNoContent},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = &told{} })
				key := s.waiting(func(of string) string { return of })
				task := s.poll()[0]
				if c.stops {
					s.cancel(key)
					if status := s.tell(task, "heartbeat"); status != http.StatusOK {
						t.Fatalf("a heartbeat was answered %d", status)
					}
				}
				time.Sleep(c.after)
				if c.first != "" {
					if status := s.tell(task, c.first); status != http.StatusConflict {
						t.Errorf("%s was answered %d", c.first, status)
					}
				}
				if status := s.tell(task, c.what); status != c.want {
					t.Errorf("%s was answered %d, want %d", c.what, status, c.want)
				}
				found, err := s.deps.Records.Lookup(t.Context(), []attempts.Key{key})
				must(t, err)
				if ended := found[0].Outcome != nil; ended != (c.want == http.StatusNoContent) {
					t.Errorf("the attempt has ended: %t", ended)
				}
			})
		})
	}
}

// A job-api whose clock is behind would still believe it.
func TestWorkerThatWasToldThatItsLeaseIsOverEndsItsTaskNowhere(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ahead := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = &told{} })
		behind := ahead.beside(-clock.MaxDifference, nil)
		key := ahead.waiting(func(of string) string { return of })
		task := ahead.poll()[0]
		time.Sleep(30 * time.Second)
		if status := ahead.tell(task, "heartbeat"); status != http.StatusConflict {
			t.Fatalf("a late heartbeat was answered %d", status)
		}
		for _, what := range []string{"complete", "heartbeat", "fail", "release"} {
			if status := behind.tell(task, what); status != http.StatusConflict {
				t.Errorf("%s was answered %d where the clock is behind", what, status)
			}
		}
		// The attempt ends as that of a worker that is silent.
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- behind.service.Run(ctx) }()
		time.Sleep(2500 * time.Millisecond)
		stop()
		must(t, <-ended)
		found, err := ahead.deps.Records.Lookup(t.Context(), []attempts.Key{key})
		if err != nil || found[0].Outcome == nil || found[0].Outcome.Kind != job.OutcomeWorkerLost {
			t.Errorf("the attempt is %+v, %v", found, err)
		}
	})
}

// meanwhile is a queue where something happens once after leases were read.
type meanwhile struct {
	pools.Queue
	happens func()
}

func (q *meanwhile) Leases(ctx context.Context, p pools.Pool, ids []string) ([]*pools.Lease, error) {
	leases, err := q.Queue.Leases(ctx, p, ids)
	if do := q.happens; do != nil {
		q.happens = nil
		do()
	}
	return leases, err
}

// A job-api may stall after it has read a lease. Its worker keeps it by a heartbeat through another one meanwhile.
func TestLeaseThatWasRenewedMeanwhileIsNotOver(t *testing.T) {
	for _, what := range []string{"heartbeat", "complete"} {
		bubble.Test(t, func(t *testing.T) {
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = &told{} })
			s.waiting(func(of string) string { return of })
			task := s.poll()[0]
			slow := &meanwhile{Queue: s.deps.Pools}
			stalls := s.beside(0, slow)
			time.Sleep(20 * time.Second)
			slow.happens = func() {
				if status := s.tell(task, "heartbeat"); status != http.StatusOK {
					t.Errorf("a heartbeat was answered %d", status)
				}
				time.Sleep(15 * time.Second)
			}
			if status := stalls.tell(task, what); status >= 300 {
				t.Errorf("%s was answered %d, although the lease was renewed", what, status)
			}
		})
	}
}

// interrupted is a log that takes nothing while it is away.
type interrupted struct {
	*told
	away bool
}

func (l *interrupted) Publish(ctx context.Context, topic string, records []dispatch.Message) error {
	if l.away {
		return context.DeadlineExceeded
	}
	return l.told.Publish(ctx, topic, records)
}

// What it told in time is stored. It is answered once that is published, by who finds its lease over.
func TestEndThatWasStoredInTimeStandsAlthoughTheLeaseIsOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := &interrupted{told: &told{}, away: true}
		s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = log })
		s.owned()
		s.waiting(func(of string) string { return of })
		task := s.poll()[0]
		if status := s.tell(task, "complete"); status != http.StatusServiceUnavailable {
			t.Fatalf("an end was answered %d while the log is away", status)
		}
		time.Sleep(30 * time.Second)
		if status := s.tell(task, "complete"); status != http.StatusServiceUnavailable {
			t.Errorf("repeated after the lease, it was answered %d", status)
		}
		log.away = false
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.service.Run(ctx) }()
		time.Sleep(3500 * time.Millisecond)
		if status := s.tell(task, "complete"); status != http.StatusNoContent || log.records != 1 {
			t.Errorf("once it is on the log, it was answered %d, with %d records", status, log.records)
		}
		if status := s.tell(task, "fail"); status != http.StatusConflict {
			t.Errorf("another end was answered %d", status)
		}
		stop()
		must(t, <-ended)
	})
}
