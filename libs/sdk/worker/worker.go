// Package worker fetches the tasks of a pool and runs them: with heartbeats, checkpoints, and a context that ends when a task is cancelled or
// lost.
package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/sdk"
)

const (
	// MaxConcurrency bounds how many tasks a worker runs at a time.
	MaxConcurrency = 256
	// MaxHandlers bounds the handlers of a worker.
	MaxHandlers = 32

	maxTasks     = 32          // of a poll
	roomWait     = time.Second // is how long a worker without room waits for some before it asks what was cancelled
	pollWait     = 20 * time.Second
	firstPause   = 500 * time.Millisecond // after a poll that failed; it doubles
	maxPause     = 30 * time.Second
	samePoll     = 50 * time.Second       // for so long a poll may be repeated under its id, and be answered with the same tasks
	tooSoon      = 500 * time.Millisecond // is when a poll that waits is not answered yet without a reason
	lastPoll     = 5 * time.Second        // is how long a worker that ends asks what its last poll was given
	drainDefault = 30 * time.Second
	// stubborn is how long a handler may go on after its context has ended because the worker ends.
	stubborn = 10 * time.Second
)

// Settings say what a worker serves.
type Settings struct {
	// Pool is the pool whose tasks it runs.
	Pool string
	// Name is the worker's, of which there must be only one; without it, it is made of the host and a random text.
	Name string
	// Version is the release of the worker, to be shown.
	Version string
	// Concurrency is how many tasks it runs at a time, at most 256; 0 means 8.
	Concurrency int
	// Drain is how long handlers may go on when the worker ends; 0 means 30 s. Then their contexts end, and what they do not complete is given back.
	Drain time.Duration
	// Logger is told of what the worker lives through; nil means slog.Default().
	Logger *slog.Logger
}

// Worker runs tasks.
type Worker struct {
	client   *sdk.Client
	settings Settings
	handlers map[string]func(context.Context, *Task) error

	mu      sync.Mutex
	running map[string]*running // by the fencing token: a task that was lost may come again while its handler still ends
	freed   chan struct{}       // has one element when a task has ended
}

type running struct {
	task *Task
	stop context.CancelCauseFunc
}

// New returns a worker. Give it handlers, then let it run.
func New(client *sdk.Client, s Settings) *Worker {
	if s.Concurrency == 0 {
		s.Concurrency = 8
	}
	if s.Drain == 0 {
		s.Drain = drainDefault
	}
	if s.Logger == nil {
		s.Logger = slog.Default()
	}
	if s.Name == "" {
		host, err := os.Hostname()
		if err != nil || len(host) > 200 {
			host = "worker"
		}
		s.Name = host + "/" + rand.Text()[:8]
	}
	return &Worker{
		client: client, settings: s, handlers: map[string]func(context.Context, *Task) error{}, running: map[string]*running{}, freed: make(chan struct{}, 1),
	}
}

// Handle runs the tasks of a handler by a function, which many goroutines may call at a time. A task is done when it returns nil; else it failed, and
// is retried as the retry policy of its job says (see Permanent, RetryAfter). The same task may come again, so it must do no harm when it is
// repeated; the context ends when the task was cancelled, has timed out or is lost.
func (w *Worker) Handle(handler string, run func(ctx context.Context, t *Task) error) {
	w.handlers[handler] = run
}

// Run fetches and runs tasks until ctx ends. Then it fetches no more, lets handlers end, and gives back what they do not end in time. It returns
// nil after that, and an error if the server refuses what it asks for.
func (w *Worker) Run(ctx context.Context) error {
	if w.settings.Pool == "" || len(w.handlers) == 0 {
		return errors.New("a worker needs a pool and at least one handler")
	}
	if len(w.handlers) > MaxHandlers {
		return fmt.Errorf("a worker has at most %d handlers", MaxHandlers)
	}
	if w.settings.Concurrency < 1 || w.settings.Concurrency > MaxConcurrency {
		return fmt.Errorf("a worker runs between 1 and %d tasks at a time", MaxConcurrency)
	}
	// Tasks go on when ctx has ended.
	alive, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var tasks sync.WaitGroup
	err := w.fetch(ctx, alive, &tasks)
	done := make(chan struct{})
	go func() { tasks.Wait(); close(done) }()
	return errors.Join(err, w.drain(done))
}

// drain waits for the tasks that run.
func (w *Worker) drain(done <-chan struct{}) error {
	timer := time.NewTimer(w.settings.Drain)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
	}
	w.mu.Lock()
	for _, r := range w.running {
		r.stop(ErrDrained)
	}
	w.mu.Unlock()
	timer.Reset(stubborn)
	select {
	case <-done:
		return nil
	case <-timer.C:
		return fmt.Errorf("%d handlers go on although their contexts have ended", w.busy())
	}
}

func (w *Worker) busy() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.running)
}

// poll is the body of a poll, and answer what it is answered.
type poll struct {
	PollID   string       `json:"poll_id"`
	Worker   string       `json:"worker"`
	Version  string       `json:"version,omitzero"`
	Handlers []string     `json:"handlers"`
	Max      int          `json:"max"`
	Wait     sdk.Duration `json:"wait"`
	Running  []string     `json:"running,omitzero"`
}

type answer struct {
	Tasks     []*Task  `json:"tasks"`
	Cancelled []string `json:"cancelled"`
}

// fetch polls until ctx ends. A poll that fails is repeated under its id, so that what it was given is not lost; when the worker ends, what the last
// one was given goes back.
func (w *Worker) fetch(ctx, alive context.Context, tasks *sync.WaitGroup) error {
	var p *poll
	var began time.Time
	failed := 0
	for ctx.Err() == nil {
		if p == nil || time.Since(began) > samePoll {
			w.awaitRoom(ctx)
			p, began = w.next(), time.Now()
		}
		sent := time.Now()
		a, err := w.ask(ctx, p)
		switch {
		case err == nil:
			w.take(alive, a, failed > 0, tasks)
			if p.Wait > 0 && len(a.Tasks)+len(a.Cancelled) == 0 && time.Since(sent) < tooSoon {
				pause(ctx, tooSoon) // the server has no room for polls that wait
			}
			p, failed = nil, 0
		case ctx.Err() != nil: // it was interrupted
		case refused(err):
			return fmt.Errorf("poll the pool %s: %w", w.settings.Pool, err)
		default:
			w.settings.Logger.Warn("cannot fetch tasks", "error", err)
			pause(ctx, firstPause<<min(failed, 10))
			failed++
		}
	}
	if p != nil && p.Max > 0 {
		w.giveBack(alive, p)
	}
	return nil
}

// awaitRoom waits until there is room for a task, but not for long.
func (w *Worker) awaitRoom(ctx context.Context) {
	timer := time.NewTimer(roomWait)
	defer timer.Stop()
	for w.busy() >= w.settings.Concurrency {
		select {
		case <-w.freed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// next is the next poll: for as many tasks as there is room for. Without room it only learns what was cancelled.
func (w *Worker) next() *poll {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []string
	for _, r := range w.running {
		ids = append(ids, r.task.ID)
	}
	slices.Sort(ids)
	p := &poll{
		PollID: rand.Text(), Worker: w.settings.Name, Version: w.settings.Version, Handlers: slices.Sorted(maps.Keys(w.handlers)),
		Max: min(w.settings.Concurrency-len(w.running), maxTasks), Running: slices.Compact(ids),
	}
	if p.Max > 0 {
		p.Wait = sdk.Duration(pollWait)
	}
	return p
}

// ask sends a poll.
func (w *Worker) ask(ctx context.Context, p *poll) (*answer, error) {
	ctx, end := context.WithTimeout(ctx, pollWait+maxPause)
	defer end()
	var a answer
	if err := w.client.Do(ctx, http.MethodPost, w.path("/poll"), p, &a); err != nil {
		return nil, err
	}
	return &a, nil
}

func (w *Worker) path(rest string) string { return "/pools/" + w.settings.Pool + rest }

// giveBack asks what the last poll was given while the worker was told to end, and releases it.
func (w *Worker) giveBack(ctx context.Context, p *poll) {
	ctx, end := context.WithTimeout(ctx, lastPoll)
	defer end()
	last := *p
	last.Wait = 0
	a, err := w.ask(ctx, &last)
	if err != nil {
		w.settings.Logger.Warn("cannot learn what the last poll was given", "error", err)
		return
	}
	for _, t := range a.Tasks {
		w.end(ctx, t, "release", fenced{FencingToken: t.FencingToken})
	}
}

// take begins the tasks of an answer, and looks after those that were cancelled. If the poll was repeated, the leases may be old: they are renewed at
// once.
func (w *Worker) take(ctx context.Context, a *answer, repeated bool, tasks *sync.WaitGroup) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.running {
		if slices.Contains(a.Cancelled, r.task.ID) {
			r.task.beats.look() // the heartbeat learns why
		}
	}
	for _, t := range a.Tasks {
		if w.running[t.FencingToken] != nil {
			continue // of a poll that was repeated
		}
		timeout, err := time.ParseDuration(t.Heartbeat)
		if err != nil || timeout <= 0 {
			timeout = 30 * time.Second
		}
		t.timeout = timeout
		handling, stop := context.WithCancelCause(ctx)
		t.beats = newBeats(w, t, stop)
		if repeated {
			t.beats.look()
		}
		w.running[t.FencingToken] = &running{task: t, stop: stop}
		tasks.Go(func() {
			defer w.ended(t)
			defer stop(nil)
			w.run(handling, ctx, t)
		})
	}
}

// ended makes room for another task.
func (w *Worker) ended(t *Task) {
	w.mu.Lock()
	delete(w.running, t.FencingToken)
	w.mu.Unlock()
	select {
	case w.freed <- struct{}{}:
	default:
	}
}

func refused(err error) bool {
	var p *sdk.Problem
	return errors.As(err, &p) && p.Status >= 400 && p.Status < 500 && p.Status != http.StatusTooManyRequests && p.Status != http.StatusRequestTimeout
}

// pause waits, at most maxPause and no longer than ctx lasts.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(min(d, maxPause))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
