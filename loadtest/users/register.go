package users

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// register registers the user's job. If a rival wants a job with the same key, one of the two gets it, and that is the user's.
func (u *user) register(ctx context.Context) (v view, ok bool) {
	clients := 1
	if u.script.rival {
		clients = 2
	}
	answers := make([]view, clients)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			from := time.Now()
			a, created := u.request(ctx, http.StatusCreated, http.MethodPost, "/jobs", u.script.body, "Idempotency-Key", u.key("job", i))
			if !created {
				a.JobID = ""
			}
			answers[i] = a
			if key, keyed := u.script.body["key"].(string); keyed {
				u.mu.Lock()
				defer u.mu.Unlock()
				u.said.Keyed = append(u.said.Keyed, ledger.Keyed{
					Key: key, JobID: a.JobID, Refused: strings.HasSuffix(a.Type, "/key-taken"), From: from, At: time.Now(),
				})
			}
		})
	}
	all.Wait()
	for _, a := range answers {
		if a.JobID != "" {
			return a, true
		}
	}
	return v, false
}
