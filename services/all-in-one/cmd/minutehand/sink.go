package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

type sinkCmd struct {
	Listen string        `default:"127.0.0.1:9000" env:"MINUTEHAND_SINK_LISTEN" help:"Address to listen on." placeholder:"HOST:PORT"`
	Status int           `default:"200" help:"Status to answer." placeholder:"CODE"`
	Delay  time.Duration `default:"0s" help:"Wait this long before answering." placeholder:"200ms"`
}

// Help implements kong.HelpProvider.
func (sinkCmd) Help() string {
	return `A target to try jobs on. Prints how many calls came in, once a second while there are any.

  minutehand sink
  minutehand sink --listen 127.0.0.1:9001 --status 503 --delay 200ms       a target that fails, and slowly`
}

// Run implements the command.
func (c *sinkCmd) Run(ctx context.Context) error {
	listener, err := net.Listen("tcp", c.Listen) //nolint:noctx // the listener lives as long as the process
	if err != nil {
		return usageError{fmt.Errorf("cannot listen on %s: %w; choose another address with --listen", c.Listen, cause(err))}
	}
	var received atomic.Int64
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received.Add(1)
		select {
		case <-time.After(c.Delay):
		case <-r.Context().Done():
		}
		w.WriteHeader(c.Status)
	})}
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
			if n := received.Load(); n != last {
				fmt.Printf("received %d (%d in the last second)\n", n, n-last)
				last = n
			}
		case err := <-served:
			fmt.Printf("received %d in all\n", received.Load())
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		}
	}
}
