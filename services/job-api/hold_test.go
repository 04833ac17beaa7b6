package jobapi_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// failedOver is a hot tier with a server that failed over a moment ago.
type failedOver struct {
	attempts.Records
	until time.Time

	mu   sync.Mutex
	sets []time.Time
}

func (f *failedOver) SetStop(ctx context.Context, jobID string, s job.State) (time.Duration, error) {
	f.mu.Lock()
	f.sets = append(f.sets, time.Now())
	f.mu.Unlock()
	if _, err := f.Records.SetStop(ctx, jobID, s); err != nil {
		return 0, err
	}
	return max(time.Until(f.until), 0), nil
}

func TestChangeIsAnsweredWhenTheServerThatWasReplacedHasEnded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		tier := &failedOver{}
		s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { tier.Records, d.Records = d.Records, tier })
		path := "/jobs/" + s.create(everySecond)
		for _, c := range []struct{ method, path, body string }{
			{http.MethodPost, path + "/pause", ""},
			{http.MethodPost, path + "/resume", ""},
			{http.MethodPatch, path, `{"name":"another"}`},
			{http.MethodPost, path + "/cancel", ""},
			{http.MethodDelete, path, ""},
		} {
			tier.until, tier.sets = time.Now().Add(attempts.ReplacedFor), nil
			want := http.StatusOK
			if c.method == http.MethodDelete {
				want = http.StatusNoContent
			}
			s.answer(want, c.method, c.path, c.body, "If-Match", "*")
			if time.Now().Before(tier.until) || len(tier.sets) != 2 || tier.sets[1].Before(tier.until) {
				t.Errorf("%s %s was answered %s before the server had ended; the record was stored %v", c.method, c.path, time.Until(tier.until), tier.sets)
			}
			s.answer(want, c.method, c.path, c.body, "If-Match", "*")
			if time.Now().After(tier.until) {
				t.Errorf("%s %s was not answered at once afterwards", c.method, c.path)
			}
		}
	})
}

func TestOnlyAShareOfTheConnectionsWaitsUntilChangesHold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		tier := &failedOver{}
		s := newServer(t, func(c *jobapi.Config, d *jobapi.Deps) {
			tier.Records, d.Records = d.Records, tier
			c.MaxConnections = 4
		})
		path := "/jobs/" + s.create(everySecond)
		tier.until = time.Now().Add(attempts.ReplacedFor)
		go s.do(http.MethodPost, path+"/pause", "")
		synctest.Wait()
		w := s.do(http.MethodPost, path+"/pause", "")
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "15" {
			t.Errorf("a change more than may wait was answered %d, to be repeated after %q", w.Code, w.Header().Get("Retry-After"))
		}
		time.Sleep(attempts.ReplacedFor)
		synctest.Wait()
		s.answer(http.StatusOK, http.MethodPost, path+"/pause", "")
	})
}
