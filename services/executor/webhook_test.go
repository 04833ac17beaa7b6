package executor

import (
	"bufio"
	"context"
	"net"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// rawTarget answers every request with the same bytes and leaves the connection open.
func rawTarget(t *testing.T, answer string) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go func() {
				r := bufio.NewReader(conn)
				for line := ""; line != "\r\n"; {
					if line, err = r.ReadString('\n'); err != nil {
						return
					}
				}
				_, _ = conn.Write([]byte(answer))
			}()
		}
	}()
	return "http://" + listener.Addr().String() + "/"
}

func TestEveryAnswerEndsTheAttemptAsItsStatusSays(t *testing.T) {
	cfg := DefaultConfig()
	cfg.AllowPrivateTargets = true
	for name, c := range map[string]struct {
		answer    string
		kind      job.OutcomeKind
		retryable bool
		status    int
	}{
		"success":             {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", job.Succeeded, false, 200},
		"switching protocols": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", job.Failed, false, 101},
		"a redirect":          {"HTTP/1.1 302 Found\r\nLocation: http://h/\r\nContent-Length: 0\r\n\r\n", job.Failed, false, 302},
		"a redirect nowhere":  {"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n", job.Failed, false, 302},
		"too busy":            {"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n", job.Failed, true, 429},
		"half an answer":      {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", job.TimedOut, true, 200},
		"no HTTP":             {"SSH-2.0-x\r\n\r\n", job.Failed, true, 0},
		"nothing":             {"", job.TimedOut, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &job.Fire{Target: job.Target{Method: "POST", URL: rawTarget(t, c.answer), Timeout: 300 * time.Millisecond}}
			done := make(chan job.Outcome, 1)
			ctx, cancel := context.WithTimeout(t.Context(), f.Target.Timeout)
			defer cancel()
			go func() { done <- newWebhook(cfg, 0, nil).call(ctx, f, job.Token{}) }()
			select {
			case o := <-done:
				if o.Kind != c.kind || o.Retryable != c.retryable || o.StatusCode != c.status {
					t.Errorf("%+v, want %s, retryable %v, status %d", o, c.kind, c.retryable, c.status)
				}
			case <-time.After(30 * time.Second):
				t.Error("the attempt did not end")
			}
		})
	}
}
