package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/job"
	own "github.com/minutehand/minutehand/libs/process"
	platform "github.com/minutehand/minutehand/services/all-in-one"
)

// instant is a network in which every target answers at once.
type instant struct {
	calls atomic.Int64
	want  int64
	done  chan struct{}
	once  sync.Once
}

// RoundTrip implements http.RoundTripper.
func (t *instant) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.calls.Add(1) >= t.want {
		t.once.Do(func() { close(t.done) })
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// runInner dispatches n fires through everything but the network and prints the fires per second.
func runInner(ctx context.Context, n int) error {
	dir, err := os.MkdirTemp("", "minutehand-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cfg := platform.DefaultConfig(dir)
	own.Collect(int64(cfg.Memory)) // as the binary does
	network := &instant{want: int64(n), done: make(chan struct{})}
	p, err := platform.Open(cfg, platform.Outside{
		Transport: network, Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- p.Run(ctx) }()
	at := job.Instant(time.Now().Add(8 * time.Second))
	if err := seed(ctx, p, n, at); err != nil {
		stop()
		return errors.Join(err, <-stopped, p.Close())
	}
	select {
	case <-network.done:
		fmt.Println(float64(n) / time.Since(at).Seconds())
	case <-time.After(3 * time.Minute):
		err = errors.New("not every fire was dispatched")
	}
	stop()
	return errors.Join(err, <-stopped, p.Close())
}

// seed puts one_shot jobs that are all due at one instant into the store.
func seed(ctx context.Context, p *platform.Platform, n int, at time.Time) error {
	const size = 1000
	for range n / size {
		jobs, entries := oneShots(size, "http://target/hook", job.Instant(time.Now()), at)
		a := p.Adapters
		if err := errors.Join(a.Pending.Put(ctx, entries), a.Jobs.CreateMany(ctx, jobs), a.Hot.Add(ctx, entries)); err != nil {
			return err
		}
	}
	if time.Now().After(at) {
		return errors.New("seeding took longer than planned for")
	}
	return nil
}

func innerRate(ctx context.Context, fires int) (float64, error) {
	cmd, err := self(ctx, "-inner", "-fires", fmt.Sprint(fires))
	if err != nil {
		return 0, err
	}
	out, err := cmd.Output()
	if err != nil {
		return 0, errors.Join(errors.New("dispatch without the network"), err)
	}
	var rate float64
	_, err = fmt.Sscan(string(out), &rate)
	return rate, err
}
