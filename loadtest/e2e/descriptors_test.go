package e2e

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/e2e/process"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// Both used to take the descriptors that the store needs, which then panicked.
func TestNeitherIdleConnectionsNorHangingTargetsTakeWhatTheStoreNeeds(t *testing.T) {
	t.Parallel()
	const (
		idle  = 1_100
		hosts = 5
		calls = 1_400 // to hosts that hang
		ahead = 10 * time.Second
	)
	jobs := sized(1_000, 2_000)
	p, healthy := newProcess(t), process.NewSink(t)
	p.Descriptors = 1024
	p.Start()
	for range idle {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	// A new connection replaces one that has been silent for a second.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	process.WaitFor(t, 10*time.Second, "a request is answered beside idle connections", func() bool {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil
	})
	hanging := make([]*process.Sink, hosts)
	for i := range hanging {
		hanging[i] = process.NewSink(t)
		hanging[i].Set("/hook", process.Hang)
	}
	first := time.Now().Add(ahead)
	// Under keys, because a connection may be closed to make room just when a request is sent on it: then the client sends
	// it again, as net/http does by itself only on a connection that it used before.
	const tries = 10
	register := func(what string, n int, body func(i int) map[string]any) {
		err := process.Each(n, func(i int) (err error) {
			for range tries {
				if _, err = p.Create(t.Context(), body(i), fmt.Sprint(what, i)); err == nil || !process.Transient(err) {
					break
				}
			}
			return err
		})
		if err != nil {
			t.Fatal("register:", err)
		}
	}
	register("hanging", calls, func(i int) map[string]any {
		return process.Once("", first, map[string]any{
			"target":       map[string]any{"kind": "http_webhook", "url": hanging[i%hosts].URL + "/hook", "timeout": "5s"},
			"retry_policy": map[string]any{"max_attempts": 1},
		})
	})
	register("healthy", jobs, func(i int) map[string]any {
		return process.Once(healthy.URL+"/hook", first.Add(time.Duration(i)*5*time.Millisecond), nil)
	})
	process.WaitFor(t, ahead+time.Minute, "every job is called", func() bool { return healthy.Count("/hook") >= jobs })
	late := ledger.Lateness(healthy.Calls())
	t.Logf("beside %d idle connections and %d calls to targets that hang: %d of %d calls, p50 %s, p99 %s late", idle, calls,
		healthy.Count("/hook"), jobs, quantile(late, .5), quantile(late, .99))
	if n := oneExecutionEach(t, healthy.Calls()); n != 0 {
		t.Errorf("%d jobs were called twice", n)
	}
}
