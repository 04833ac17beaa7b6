package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/pools"
)

// The progress of an execution is a list of the cold store, with an item for each lease under which a worker told any: its name is the
// fencing token. So a worker that lost its task changes nothing of what a later one tells. It is removed when the execution succeeds in
// time, and with all others of its hour when it is older than the history.

const (
	// maxProgressItems bounds the leases of an execution of which progress is kept: that of earlier ones is removed when a later one tells any.
	maxProgressItems = 100
	// tidyHours is for how many hours, before the oldest that is kept, what is left is removed at each look.
	tidyHours = 24
)

func progressList(executionID string) string { return "progress/" + executionID }

// hourList names the list of the executions of which progress was first told in an hour.
func hourList(at time.Time) string { return "progress-of/" + at.UTC().Format("2006-01-02T15") }

// putProgress stores what a worker tells. A sequence of 0 means that the worker does not count: then what is stored under the lease's next number stands.
//
// A request may come late: the worker has given it up, and has told more through another job-api since. So writes are ordered by the worker's own count,
// from when the task began, and not by when they are made: clocks of two job-apis differ.
func (ts *Tasks) putProgress(ctx context.Context, l *pools.Lease, progress json.RawMessage, sequence int64, now time.Time) error {
	id := l.Fire.ExecutionID
	if !l.Progress {
		if err := ts.deps.Settings.PutItem(ctx, hourList(now), jobstore.Item{Name: id, Value: []byte{1}}); err != nil {
			return fmt.Errorf("note that there is progress: %w", err)
		}
	}
	if sequence == 0 {
		sequence = l.Number + 1
	}
	item := jobstore.Item{Name: l.Fence.String(), Value: progress, Version: l.Begun.UnixMicro() + sequence}
	if err := ts.deps.Settings.PutItem(ctx, progressList(id), item); err != nil {
		return fmt.Errorf("store progress: %w", err)
	}
	if l.Progress || !l.Again {
		return nil
	}
	items, err := ts.deps.Settings.Items(ctx, progressList(id), "", maxProgressItems)
	for _, i := range items {
		if i.Name < l.Fence.String() && err == nil {
			err = ts.deps.Settings.RemoveItem(ctx, progressList(id), i.Name, 0)
		}
	}
	if err != nil {
		return fmt.Errorf("remove earlier progress: %w", err)
	}
	return nil
}

// progressOf returns the last progress of a task's execution; nil if there is none.
func (ts *Tasks) progressOf(ctx context.Context, t *pools.Task) (json.RawMessage, error) {
	if !t.Again {
		return nil, nil
	}
	items, err := ts.deps.Settings.Items(ctx, progressList(t.Fire.ExecutionID), "", maxProgressItems)
	if err != nil {
		return nil, fmt.Errorf("read progress: %w", err)
	}
	if len(items) == 0 {
		return nil, nil
	}
	return items[len(items)-1].Value, nil
}

func (ts *Tasks) forgetProgress(ctx context.Context, executionID string) error {
	if err := ts.deps.Settings.RemoveList(ctx, progressList(executionID)); err != nil {
		return fmt.Errorf("remove progress: %w", err)
	}
	return nil
}

// tidy removes the progress of executions that are older than the history.
func (ts *Tasks) tidy(ctx context.Context, now time.Time) error {
	const page = 100
	for n := range tidyHours {
		hour := hourList(now.Add(-jobstore.HistoryTTL - time.Duration(n)*time.Hour))
		for {
			items, err := ts.deps.Settings.Items(ctx, hour, "", page)
			if err != nil {
				return fmt.Errorf("read what has progress: %w", err)
			}
			for _, i := range items {
				if err := ts.forgetProgress(ctx, i.Name); err != nil {
					return err
				}
				if err := ts.deps.Settings.RemoveItem(ctx, hour, i.Name, 0); err != nil {
					return fmt.Errorf("remove what has progress: %w", err)
				}
			}
			if len(items) < page {
				break
			}
		}
	}
	return nil
}
