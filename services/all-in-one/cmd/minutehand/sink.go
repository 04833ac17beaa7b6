package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

type sinkCmd struct {
	Listen string        `default:"127.0.0.1:9000" env:"MINUTEHAND_SINK_LISTEN" help:"Address to listen on." placeholder:"HOST:PORT"`
	Status int           `default:"200" help:"Status to answer." placeholder:"CODE"`
	Delay  time.Duration `default:"0s" help:"Wait this long before answering." placeholder:"200ms"`
}

// Help implements kong.HelpProvider.
func (sinkCmd) Help() string {
	return `A target to try jobs on. Prints how many calls came in, once a second while there are any. /_stats says the same as JSON, with duplicates, early
calls, and with ?samples=1000 how late calls came since it was asked last; loadtest/k6 asks for that.

  minutehand sink
  minutehand sink --listen 127.0.0.1:9001 --status 503 --delay 200ms       a target that fails, and slowly`
}

// idle is how long our own targets let a connection wait for its first request. It is longer than the executor keeps one that it does
// not use, because a target that closes a connection in the moment a call is written on it fails the attempt.
const idle = 2 * time.Minute

// Run implements the command.
func (c *sinkCmd) Run(ctx context.Context) error {
	listener, err := net.Listen("tcp", c.Listen) //nolint:noctx // the listener lives as long as the process
	if err != nil {
		return usageError{fmt.Errorf("cannot listen on %s: %w; choose another address with --listen", c.Listen, cause(err))}
	}
	var received counts
	mux := http.NewServeMux()
	mux.Handle("GET /_stats", &received)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		received.note(r, time.Now())
		select {
		case <-time.After(c.Delay):
		case <-r.Context().Done():
		}
		w.WriteHeader(c.Status)
	})
	server := &http.Server{ReadHeaderTimeout: idle, Handler: mux}
	fmt.Printf("the sink listens on http://%s\n", listener.Addr())
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var last int64
	for {
		select {
		case <-tick.C:
			if n := received.all(); n != last {
				fmt.Printf("received %d (%d in the last second)\n", n, n-last)
				last = n
			}
		case err := <-served:
			fmt.Printf("received %d in all\n", received.all())
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		}
	}
}
