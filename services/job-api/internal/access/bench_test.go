package access

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/tenants"
)

func BenchmarkVerification(b *testing.B) {
	p := newProvider(b)
	g, _ := newGuard(b, p)
	_, key, err := g.directory.CreateKey(b.Context(), tenants.Key{Scope: tenants.ScopeOf(1), TenantName: "acme", Role: "viewer"}, tenants.Edit{})
	if err != nil {
		b.Fatal(err)
	}
	run := func(name, token string, known bool) {
		b.Run(name, func(b *testing.B) {
			r := request(b, bearer(token)...)
			processor(b, func() {
				if !known {
					clear(g.tokens.verified)
				}
				if _, err := g.Principal(r); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
	b.Run("a bare POST with its sink", func(b *testing.B) {
		sink := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		b.Cleanup(sink.Close)
		processor(b, func() {
			resp, err := http.Post(sink.URL, "application/json", strings.NewReader("{}"))
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		})
	})
	run("key", key, true)
	for id := range methods() {
		token := p.sign(id, header(id), text(good()))
		run(id, token, true)
		run(id+" for the first time", token, false)
	}
}

// processor reports the processor's time for each call, that of both ends of a connection where both are here.
func processor(b *testing.B, call func()) {
	b.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before, n := used(), 0
	for b.Loop() {
		call()
		n++
	}
	b.ReportMetric(float64((used()-before).Nanoseconds())/float64(n), "cpu-ns/op")
}
