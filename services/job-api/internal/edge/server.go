package edge

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Serve answers requests on a listener until ctx ends, then lets those in flight finish, at most for the drain limit. It
// returns nil after a clean stop.
func (e *Edge) Serve(ctx context.Context, l net.Listener) error {
	limited := newConnections(l, e.cfg.MaxConnections)
	server := &http.Server{
		Handler: e.handler, ConnState: limited.changed, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 5 * time.Minute, IdleTimeout: 2 * time.Minute,
		TLSConfig: e.cfg.TLS, MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(e.deps.Logger.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() {
		if e.cfg.TLS != nil {
			served <- server.ServeTLS(limited, "", "")
			return
		}
		served <- server.Serve(limited)
	}()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.DrainLimit)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		e.deps.Logger.Warn("requests were still under way at the drain limit", "error", err)
		return server.Close()
	}
	return nil
}
