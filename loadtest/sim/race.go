package sim

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// race makes two clients change a job's target at once, each by the ETag that it has read: neither overwrites a version it
// has not seen.
func (w *world) race(s script, id string, version *int) {
	type change struct {
		at         time.Time
		version    int
		target     string
		definition string
	}
	var mu sync.Mutex
	var changes []change
	var both, read sync.WaitGroup
	read.Add(2)
	old := w.hosts(s, *version+1)
	for n := range 2 {
		host := w.host(s, *version+1+n)
		both.Go(func() {
			answer, ok := w.patchByETag(fmt.Sprintf("%s-%d", s.name, n), id, s.aimAt(host), &read)
			if ok {
				definition, _ := answer["definition_id"].(string)
				mu.Lock()
				defer mu.Unlock()
				changes = append(changes, change{time.Now(), versionOf(answer), host, definition})
			}
		})
	}
	both.Wait()
	*version += 2
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.version, b.version) })
	for i, c := range changes {
		if i > 0 && changes[i-1].version == c.version {
			w.violate("API", id, "two changes were answered with version %d", c.version)
		}
		w.stopped(ledger.Stop{JobID: id, Kind: ledger.StopUpdate, AckedAt: c.at, OldHosts: slices.Clone(old)}, c.definition)
		old = append(old, c.target)
	}
}

// patchByETag sets a job's target by the version that it has read, once others have read it too. It repeats this until
// nobody else was faster.
func (w *world) patchByETag(who, id string, target map[string]any, read *sync.WaitGroup) (answer map[string]any, ok bool) {
	here := sync.OnceFunc(read.Done)
	defer here()
	for w.base.Err() == nil {
		job, ok := w.request(who, http.StatusOK, http.MethodGet, "/jobs/"+id, nil)
		here()
		read.Wait()
		if !ok {
			return nil, false
		}
		etag, _ := job["ETag"].(string)
		body := map[string]any{"target": target}
		answer, ok = w.request(who, http.StatusOK, http.MethodPatch, "/jobs/"+id, body, "If-Match", etag)
		if kind, _ := answer["type"].(string); ok || !strings.HasSuffix(kind, "/changed") {
			return answer, ok
		}
		w.mu.Lock()
		w.raced++
		w.mu.Unlock()
	}
	return nil, false
}

// versionOf returns the version in an answer's ETag.
func versionOf(answer map[string]any) int {
	etag, _ := answer["ETag"].(string)
	n, _ := strconv.Atoi(strings.Trim(etag, `"`))
	return n
}
