package jobapi_test

import (
	"context"
	"sync/atomic"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// counter counts the writes to a store; claims are not counted, because they say nothing about a job.
type counter struct{ writes atomic.Int64 }

type countedJobs struct {
	jobstore.Jobs
	*counter
}

func (s countedJobs) Create(ctx context.Context, j job.Job, exclusive bool) error {
	s.writes.Add(1)
	return s.Jobs.Create(ctx, j, exclusive)
}

func (s countedJobs) CreateMany(ctx context.Context, jobs []job.Job) error {
	s.writes.Add(1)
	return s.Jobs.CreateMany(ctx, jobs)
}

func (s countedJobs) Replace(ctx context.Context, j job.Job) error {
	s.writes.Add(1)
	return s.Jobs.Replace(ctx, j)
}

func (s countedJobs) PutDefinition(ctx context.Context, id string, d job.Definition) error {
	s.writes.Add(1)
	return s.Jobs.PutDefinition(ctx, id, d)
}

type countedPending struct {
	jobstore.Pending
	*counter
}

func (s countedPending) Put(ctx context.Context, entries []job.Entry) error {
	s.writes.Add(1)
	return s.Pending.Put(ctx, entries)
}
