package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/sdk"
	"github.com/minutehand/minutehand/libs/sdk/worker"
)

// One thread, because timers of a bubble that fire at one instant on two destroy the race detector's context
// (https://github.com/golang/go/issues/78156).
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

// pool is a server with one task, which fails as a test says.
type pool struct {
	mu    sync.Mutex
	given bool
	said  []string // what workers told, and when, without polls
	polls int
	// fails answers a request instead of the server; nil of it means that it does not.
	fails func(ctx context.Context, what string) error
	// refuses is the status of the answer to an end with a result; 0 means that it is taken.
	refuses int
	// logged gets what the worker logs.
	logged bytes.Buffer
}

// RoundTrip implements http.RoundTripper.
func (p *pool) RoundTrip(r *http.Request) (*http.Response, error) {
	what := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var body struct {
		Max    int    `json:"max"`
		Wait   string `json:"wait"`
		Result any    `json:"result"`
		After  string `json:"retry_after"`
	}
	if err := json.Unmarshal(text, &body); err != nil {
		return nil, err
	}
	p.mu.Lock()
	first := what == "poll" && body.Max > 0 && !p.given
	if what == "poll" {
		p.polls++
		p.given = p.given || first
	} else {
		p.said = append(p.said, strings.TrimSpace(what+" "+body.After))
	}
	p.mu.Unlock()
	if p.fails != nil {
		if err := p.fails(r.Context(), what); err != nil {
			p.mu.Lock()
			p.given = p.given && !first // a poll that is repeated gets the same
			p.mu.Unlock()
			return nil, err
		}
	}
	answer := ""
	switch {
	case first:
		now := time.Now().UTC()
		answer = `{"tasks":[{"task_id":"exe_1.1","handler":"do","fencing_token":"0001","heartbeat_timeout":"30s","ends_at":"` +
			now.Add(time.Hour).Format(time.RFC3339) + `"}],"cancelled":[]}`
	case what == "poll":
		if body.Wait == "20s" {
			select {
			case <-time.After(20 * time.Second):
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		answer = `{"tasks":[],"cancelled":[]}`
	case what == "heartbeat":
		answer = `{"cancelled":false}`
	}
	status := http.StatusOK
	if body.Result != nil && p.refuses != 0 {
		status, answer = p.refuses, `{"detail":"it is refused"}`
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

// work runs the task with a handler, for a while, and then ends the worker.
func (p *pool) work(t *testing.T, lasts time.Duration, handle func(context.Context, *worker.Task) error) {
	t.Helper()
	client, err := sdk.New("http://pool", sdk.Settings{HTTP: &http.Client{Transport: p}, Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	w := worker.New(client, worker.Settings{Pool: "work", Name: "w", Drain: time.Second, Logger: slog.New(slog.NewTextHandler(&p.logged, nil))})
	w.Handle("do", handle)
	ctx, end := context.WithTimeout(t.Context(), lasts)
	defer end()
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
}

func nothing(context.Context, *worker.Task) error { return nil }

func bubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	synctest.Test(t, f) //nolint:forbidigo // this module depends on nothing; see TestMain
}

func TestPollThatFailedIsAskedAgainWhenTheWorkerEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lost := 0
		p := &pool{fails: func(_ context.Context, what string) error {
			if lost++; what == "poll" && lost <= 3 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}}
		p.work(t, 2*time.Second, nothing) // it ends in the pause after the third
		if !slices.Equal(p.said, []string{"release"}) {
			t.Errorf("it said %q", p.said)
		}
	})
}

func TestSuccessIsToldWhateverItsResultIs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, result := range []any{make(chan int), math.NaN(), strings.Repeat("x", 100_000)} {
			p := &pool{}
			p.work(t, time.Second, func(_ context.Context, task *worker.Task) error {
				task.SetResult(result)
				return nil
			})
			if log := p.logged.String(); !slices.Equal(p.said, []string{"complete"}) || !strings.Contains(log, "the result of a task cannot be kept") {
				t.Errorf("it said %q and logged %q", p.said, log)
			}
		}
	})
}

func TestEndIsToldWithoutAResultThatIsRefusedUnlessTheTaskIsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for status, want := range map[int][]string{
			http.StatusBadRequest: {"complete", "complete"}, http.StatusRequestEntityTooLarge: {"complete", "complete"},
			http.StatusUnprocessableEntity: {"complete", "complete"}, http.StatusConflict: {"complete"}, http.StatusNotFound: {"complete"},
		} {
			p := &pool{refuses: status}
			p.work(t, time.Second, func(_ context.Context, task *worker.Task) error {
				task.SetResult("done")
				return nil
			})
			told := strings.Contains(p.logged.String(), "is refused and is not kept")
			if !slices.Equal(p.said, want) || told != (len(want) == 2) {
				t.Errorf("after %d it said %q and logged %q", status, p.said, p.logged.String())
			}
		}
	})
}

func TestFailureIsToldWhateverPauseItAsksFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := &pool{}
		p.work(t, time.Second, func(context.Context, *worker.Task) error { return worker.RetryAfter(-time.Hour, errors.New("busy")) })
		if !slices.Equal(p.said, []string{"fail"}) {
			t.Errorf("it said %q", p.said)
		}
	})
}

func TestConnectionThatDiedCostsATryAndNotTheTask(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var hung sync.Map
		p := &pool{fails: func(ctx context.Context, what string) error {
			if _, before := hung.LoadOrStore(what, true); before || what == "poll" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		p.work(t, 5*time.Minute, func(ctx context.Context, _ *worker.Task) error {
			select {
			case <-time.After(time.Minute):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		all := slices.Clone(p.said)
		if ends := slices.DeleteFunc(all, func(s string) bool { return s == "heartbeat" }); !slices.Equal(ends, []string{"complete", "complete"}) {
			t.Errorf("it said %q", p.said)
		}
	})
}

func TestTaskIsLostWhenItsHeartbeatsAreNotAnsweredAndItsSuccessIsToldAllTheSame(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var cause error
		p := &pool{fails: func(_ context.Context, what string) error {
			if what == "heartbeat" {
				return io.ErrUnexpectedEOF
			}
			return nil
		}}
		began := time.Now()
		p.work(t, 5*time.Minute, func(ctx context.Context, _ *worker.Task) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			if took := time.Since(began); took < 30*time.Second || took > 31*time.Second {
				t.Errorf("it was lost after %s", took)
			}
			return nil
		})
		if !errors.Is(cause, worker.ErrLost) || p.said[len(p.said)-1] != "complete" {
			t.Errorf("it ended by %v and said %q", cause, p.said)
		}
	})
}

func TestServerWithoutRoomForPollsIsNotAskedAllTheTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := &pool{}
		full := &full{p}
		client, err := sdk.New("http://pool", sdk.Settings{HTTP: &http.Client{Transport: full}})
		if err != nil {
			t.Fatal(err)
		}
		w := worker.New(client, worker.Settings{Pool: "work"})
		w.Handle("do", nothing)
		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		if err := w.Run(ctx); err != nil || p.polls > 125 {
			t.Errorf("it polled %d times in a minute, %v", p.polls, err)
		}
	})
}

// full answers polls at once.
type full struct{ *pool }

// RoundTrip implements http.RoundTripper.
func (f *full) RoundTrip(*http.Request) (*http.Response, error) {
	f.polls++
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"tasks":[],"cancelled":[]}`))}, nil
}
