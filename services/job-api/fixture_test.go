package jobapi_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/job"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// server is an API on embedded adapters in memory.
type server struct {
	t       testing.TB
	jobs    *embedded.JobStore
	pending *embedded.Pending
	stored  *embedded.Settings
	service *jobapi.Service
	handler http.Handler
	deps    jobapi.Deps
}

// newServer returns an API; wrap may put something between it and its store.
func newServer(t testing.TB, configure func(*jobapi.Config, *jobapi.Deps)) *server {
	t.Helper()
	db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	records, err := embedded.NewRecords(t.Context(), db, 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg := jobapi.DefaultConfig()
	cfg.Partitions = 4
	stored := embedded.NewSettings(db)
	jobs, pending := embedded.NewJobStore(db), embedded.NewPending(db)
	deps := jobapi.Deps{
		Jobs: jobs, Pending: pending, History: embedded.NewHistory(db),
		Settings: stored,
		Hot:      embedded.NewHotBuckets(db.Incarnation(), 4, 0), Records: records, Pools: embedded.NewPools(), Logger: slog.New(slog.DiscardHandler),
	}
	if configure != nil {
		configure(&cfg, &deps)
	}
	s, err := jobapi.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	return &server{t: t, jobs: jobs, pending: pending, stored: stored, service: s, handler: s.Handler(), deps: deps}
}

// do makes a request with a JSON body and pairs of headers.
func (s *server) do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), method, "/api/v1/", strings.NewReader(body))
	r.URL.Path, r.URL.RawQuery, _ = strings.Cut("/api/v1"+path, "?")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

// doAt makes a request under a host name.
func (s *server) doAt(host, method, path string) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), method, "/api/v1"+path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

// entries counts the pending entries in the store that call something.
func (s *server) entries() (n int) {
	s.t.Helper()
	s.eachEntry(func(e *job.Entry) {
		if e.Change == nil {
			n++
		}
	})
	return n
}

// changes returns the pending entries that tell of a change, by operation.
func (s *server) changes() map[string][]job.Entry {
	s.t.Helper()
	of := map[string][]job.Entry{}
	s.eachEntry(func(e *job.Entry) {
		if e.Change != nil {
			of[e.Change.Operation] = append(of[e.Change.Operation], *e)
		}
	})
	return of
}

// publishChanges marks the entries that tell of changes as workers and settlers would.
func (s *server) publishChanges() {
	s.t.Helper()
	for _, list := range s.changes() {
		for i := range list {
			must(s.t, s.pending.MarkDone(s.t.Context(), []job.Locator{list[i].Locator}))
		}
	}
}

// eachEntry calls do with every pending entry in the store.
func (s *server) eachEntry(do func(e *job.Entry)) {
	s.t.Helper()
	for p := range 4 {
		var low int64
		for {
			minute, ok, err := s.pending.FirstOpen(s.t.Context(), p, low, 1<<40)
			if err != nil {
				s.t.Fatal(err)
			}
			if !ok {
				break
			}
			rows, err := s.pending.Scan(s.t.Context(), p, minute, nil, 10_000)
			if err != nil {
				s.t.Fatal(err)
			}
			for i := range rows {
				do(&rows[i].Entry)
			}
			low = minute + 1
		}
	}
}

const goodJob = `{"name":"report","type":"cron","cron_expr":"0 9 * * MON","timezone":"Europe/Berlin",` +
	`"target":{"kind":"http_webhook","url":"https://example.com/hook","headers":{"X-A":"b"},"body":{"a":1}}}`
