package reads

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

const (
	// maxRowsRead bounds the rows that one list call reads; a page may be short and still have a cursor.
	maxRowsRead = 5000
	// maxPageBytes is roughly the most that a page holds, in bytes: the item that exceeds it is the page's last.
	maxPageBytes = 4 << 20
	// firstChunk is how many rows a list reads at first; how many it reads next depends on their size.
	firstChunk = 20
	// shownAtOnce bounds the jobs of a page whose history is read concurrently.
	shownAtOnce = 16
	// wholeTarget is the value of fields with which a list includes the targets' bodies.
	wholeTarget = "target.body"
)

// listJobs shows a page of a tenant's jobs.
func (rs *Reads) listJobs(ctx context.Context, r *edge.Request) (edge.Response, error) {
	result := newPage()
	cursor := r.Parameters["cursor"]
	if cursor != "" && !job.ValidID(cursor, job.JobPrefix) {
		return edge.Response{}, edge.BadCursor()
	}
	size, weight, read, chunk := 0, 0, 0, firstChunk
	for more := true; more && read < maxRowsRead && len(result.Items) < r.Limit() && size < maxPageBytes; {
		rows, next, err := rs.Jobs.List(ctx, r.Tenant(), cursor, min(r.Limit()-len(result.Items), chunk))
		if err != nil {
			return edge.Response{}, fmt.Errorf("list jobs: %w", err)
		}
		shown, err := rs.showAll(ctx, rows, r.Parameters["status"], r.Parameters["label"])
		if err != nil {
			return edge.Response{}, err
		}
		cursor, more = next, next != ""
		for i, body := range shown {
			if size >= maxPageBytes { // the rest is the next page's
				cursor, more = rows[i-1].ID, true
				break
			}
			read++
			weight += weightOf(&rows[i])
			if body == nil {
				continue
			}
			if r.Parameters["fields"] != wholeTarget {
				body.Target.Body = nil
			}
			size += weightOf(&rows[i]) - len(rows[i].Definition.Target.Body) + len(body.Target.Body)
			result.Items = append(result.Items, body)
		}
		if read > 0 {
			chunk = min(2*chunk, max(maxPageBytes/(weight/read), 1)) // rows to come may weigh more than those read
		}
	}
	if cursor != "" {
		result.NextCursor = &cursor
	}
	return edge.Response{Status: http.StatusOK, Body: result}, nil
}

// weightOf returns roughly what a job takes in memory and in an answer, in bytes.
func weightOf(j *job.Job) int {
	weight := 2048 + len(j.Name) + len(j.Definition.Target.URL) + len(j.Definition.Target.Body)
	for name, value := range j.Definition.Target.Headers {
		weight += len(name) + len(value)
	}
	return weight
}

// showAll is showIf for many jobs, in their order.
func (rs *Reads) showAll(ctx context.Context, rows []job.Job, status, label string) ([]*Job, error) {
	shown := make([]*Job, len(rows))
	failed := make([]error, len(rows))
	var workers sync.WaitGroup
	var next atomic.Int64
	for range min(shownAtOnce, len(rows)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(rows); i = int(next.Add(1)) - 1 {
				shown[i], failed[i] = rs.showIf(ctx, &rows[i], status, label)
			}
		})
	}
	workers.Wait()
	return shown, errors.Join(failed...)
}

// showIf shows a job if it matches a list's filters, and otherwise returns nil.
func (rs *Reads) showIf(ctx context.Context, j *job.Job, status, label string) (*Job, error) {
	if j.Deleted || label != "" && !job.HasLabel(j.Labels, label) {
		return nil, nil
	}
	if stored := string(j.Status); status != "" && stored != status && (status != "completed" || j.Status != job.StatusActive) {
		return nil, nil // completed is an active job whose schedule has ended; no other status depends on what Show derives
	}
	body, err := rs.Show(ctx, j)
	if err != nil || status != "" && body.Status != status {
		return nil, err
	}
	return body, nil
}
