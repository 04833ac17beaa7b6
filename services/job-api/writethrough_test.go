package jobapi_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// silent is a hot tier that does not answer.
type silent struct {
	hotbucket.Buckets
	asked atomic.Int64
}

func (s *silent) Horizons(ctx context.Context, _ []int) ([]time.Time, error) {
	s.asked.Add(1)
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *silent) Add(ctx context.Context, _ []job.Entry) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestRegistrationDoesNotWaitForTheHotTier(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		hot := &silent{}
		s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) {
			hot.Buckets = d.Hot
			d.Hot = hot
		})
		began := time.Now()
		s.create(goodJob)
		if took := time.Since(began); took > 300*time.Millisecond {
			t.Errorf("the answer took %s", took)
		}
		began = time.Now()
		for range 100 {
			s.create(goodJob)
		}
		s.answer(http.StatusOK, http.MethodPost, "/jobs:batch", `{"jobs":[`+goodJob+`,`+goodJob+`]}`)
		if took := time.Since(began); took > 300*time.Millisecond {
			t.Errorf("101 answers took %s, although it was known that the hot tier does not answer", took)
		}
		time.Sleep(2 * time.Second)
		before := hot.asked.Load()
		s.create(goodJob)
		if hot.asked.Load() == before {
			t.Error("the hot tier is not tried again")
		}
	})
}
