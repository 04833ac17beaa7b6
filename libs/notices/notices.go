// Package notices holds what the owners of jobs are to be told, until they were.
//
// It promises: the id of a notice follows from the job, the cause, the period and the target, so a process that finds the same thing again,
// after a crash or beside another one, writes the same item; and what was told in a period is not told again in it. A notice names its target
// by a hash: the address and its secrets stay in the job's row.
//
// Notices are items of [Slices] lists. One that was told stays as a mark, beside which the item may come again, until its period is long over.
package notices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// Notice is what somebody is to be told.
type Notice struct {
	JobID string    `json:"job_id"`
	Cause job.Cause `json:"cause"`
	// Period is when the quiet period began, Quiet how long it is. To is the [job.Notify.ID] of whom it is for.
	Period time.Time     `json:"period"`
	Quiet  time.Duration `json:"quiet"`
	To     string        `json:"to"`
	// At is when it happened, Reason says what, in a sentence.
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
	// ExecutionID and Attempts are those of an execution that has failed for good, IncidentID that of an incident; each may be missing.
	ExecutionID string `json:"execution_id,omitempty"`
	Attempts    int    `json:"attempts,omitempty"`
	IncidentID  string `json:"incident_id,omitempty"`
	// Hops is how many notices in a row led to this one, itself included.
	Hops int `json:"hops"`
	// AfterSuccess is set for a recovery that has not come yet, from a failure at At: it is owed when an execution has succeeded after that. There is
	// one for a job and whom it tells, whatever the period.
	AfterSuccess bool `json:"after_success,omitempty"`
	// Version is that of the item of a recovery that has not come yet: its failure's instant, in microseconds. So a failure is not replaced by an
	// earlier one, nor removed with it, whatever stalls. Zero in an item of a release that wrote none.
	Version int64 `json:"version,omitempty"`
}

// Prefix begins the ids of notices.
const Prefix = "ntf_"

// ID returns the notice's id.
func (n *Notice) ID() string {
	if n.AfterSuccess {
		mark := 'v'
		if n.Version == 0 { // no item is written both with versions and without
			mark = 'w'
		}
		return fmt.Sprintf("%s%s-%c-%s", Prefix, strings.TrimPrefix(n.JobID, job.JobPrefix), mark, n.To)
	}
	return fmt.Sprintf("%s%s-%c%013d-%s", Prefix, strings.TrimPrefix(n.JobID, job.JobPrefix), n.Cause[0], n.Period.UnixMilli(), n.To)
}

// Over returns when the period ends.
func (n *Notice) Over() time.Time { return n.Period.Add(n.Quiet) }

// Of returns what one of a job's is told of a cause; at decides about the period.
func Of(jobID string, to *job.Notify, c job.Cause, at time.Time) Notice {
	return Notice{JobID: jobID, Cause: c, Period: to.Period(at), Quiet: max(to.Quiet, job.MinQuiet), To: to.ID(), At: job.Instant(at), Hops: 1}
}

// Slices is in how many lists notices are.
const Slices = 8

// told follows the id of a notice in the name of its mark, which so comes right behind it in the list.
const told = "/told"

// Store holds notices.
type Store struct{ Lists jobstore.Lists }

func list(jobID string) string { return "notices/" + strconv.Itoa(bucket.Partition(jobID, Slices)) }

// Owe puts a notice where it waits to be told. A recovery that has not come yet waits from the latest failure on, also if an earlier one is found
// again: a log may be read once more.
func (s Store) Owe(ctx context.Context, n *Notice) error {
	owed := *n
	if n.AfterSuccess {
		owed.Version = n.At.UnixMicro()
	}
	value, err := json.Marshal(&owed)
	if err != nil {
		return err
	}
	if err := s.Lists.PutItem(ctx, list(n.JobID), jobstore.Item{Name: owed.ID(), Value: value, Version: owed.Version}); err != nil {
		return fmt.Errorf("owe a notice of job %s: %w", n.JobID, err)
	}
	return nil
}

// Told marks a notice as told, and removes it. It may come again.
func (s Store) Told(ctx context.Context, n *Notice) error {
	value, err := json.Marshal(&Notice{JobID: n.JobID, Cause: n.Cause, Period: n.Period, Quiet: n.Quiet, To: n.To})
	if err != nil {
		return err
	}
	if err := s.Lists.PutItem(ctx, list(n.JobID), jobstore.Item{Name: n.ID() + told, Value: value}); err != nil {
		return fmt.Errorf("note that a notice of job %s was told: %w", n.JobID, err)
	}
	return s.Remove(ctx, n)
}

// Remove removes a notice that is not to be told. A recovery that waits from a later failure on by now stays.
func (s Store) Remove(ctx context.Context, n *Notice) error {
	return s.remove(ctx, n.JobID, n.ID(), n.Version)
}

// Forget removes the mark of a notice that was told.
func (s Store) Forget(ctx context.Context, n *Notice) error {
	return s.remove(ctx, n.JobID, n.ID()+told, 0)
}

func (s Store) remove(ctx context.Context, jobID, name string, version int64) error {
	if err := s.Lists.RemoveItem(ctx, list(jobID), name, version); err != nil {
		return fmt.Errorf("remove a notice of job %s: %w", jobID, err)
	}
	return nil
}

// Standing is a notice in a list. Owed: it waits to be told; Told: it, or the same one before it, was.
type Standing struct {
	Notice
	Owed, Told bool
}

// ErrUnreadable is returned when an item is none that this release knows.
var ErrUnreadable = errors.New("a notice cannot be read")

// List returns notices of a list behind the place where another call ended, "" for the beginning, and where to go on, "" at the end. limit is
// over 1. Items that cannot be read are left out, and the error is [ErrUnreadable].
func (s Store) List(ctx context.Context, slice int, after string, limit int) (page []Standing, next string, err error) {
	items, err := s.Lists.Items(ctx, "notices/"+strconv.Itoa(slice), after, limit)
	if err != nil {
		return nil, "", fmt.Errorf("list notices: %w", err)
	}
	if len(items) == limit {
		if last := items[limit-1]; !strings.HasSuffix(last.Name, told) { // its mark may be behind it
			items = items[:limit-1]
		}
		next = items[len(items)-1].Name
	}
	var unreadable error
	for _, i := range items {
		id, isMark := strings.CutSuffix(i.Name, told)
		if n := len(page); isMark && n > 0 && page[n-1].ID() == id {
			page[n-1].Told = true
			continue
		}
		x := Standing{Owed: !isMark, Told: isMark}
		if json.Unmarshal(i.Value, &x.Notice) != nil || x.Cause == "" || x.ID() != id {
			unreadable = ErrUnreadable
			continue
		}
		page = append(page, x)
	}
	return page, next, unreadable
}
