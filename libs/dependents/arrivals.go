package dependents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// Claim is what was decided once about an execution that follows others.
type Claim struct {
	ExecutionID  string `json:"execution_id"`
	DefinitionID string `json:"definition_id"`
	// At is when it is due, and was to be written.
	At time.Time `json:"at"`
	// N counts the claims of one execution, from 0.
	N int `json:"n,omitempty"`
}

// claimKey is a key that no client can name, as it has spaces.
func claimKey(jobID, follows string, n int) string {
	return "after " + jobID + " " + follows + " " + strconv.Itoa(n)
}

// One claims the execution by which a job follows one of another job, and returns the claim that stands. Claims are remembered for
// [jobstore.KeyTTL].
func (s Store) One(ctx context.Context, j *job.Job, follows string, c Claim) (Claim, error) {
	standing, _, err := s.Jobs.ClaimKey(ctx, j.Tenant, claimKey(j.ID, follows, c.N), jobstore.Claim{ID: c.ExecutionID, DefinitionID: c.DefinitionID, AcceptedAt: c.At})
	if err != nil {
		return Claim{}, fmt.Errorf("claim an execution of job %s: %w", j.ID, err)
	}
	return Claim{ExecutionID: standing.ID, DefinitionID: standing.DefinitionID, At: standing.AcceptedAt, N: c.N}, nil
}

// occurrence is an instant at which executions of a job's parents have ended.
type occurrence struct {
	At int64 `json:"at"`
	// Ended are the parents, each followed by "+" for a success and "-" for a failure; none is left once the execution is claimed.
	Ended []string `json:"ended,omitempty"`
	Claim *Claim   `json:"claim,omitempty"`
}

// The occurrences of a job that waits for several lie in parts, so that settlers seldom meet, by their instants. Of each part the latest are
// remembered, in the order of their last arrival: those that wait for a parent, and those that were claimed.
const (
	parts       = 16
	mostOpen    = 256
	mostClaimed = 64
)

// partName returns the name of the setting that has a part.
func partName(jobID string, part int) string { return "arrived/" + jobID + "/" + strconv.Itoa(part) }

// partOf returns the part in which an instant lies. Instants are often multiples of a minute or a day.
func partOf(at time.Time) int {
	h := fnv.New32a()
	_, _ = h.Write(strconv.AppendInt(nil, at.UnixMilli(), 36)) // a hash never fails to write
	return int(h.Sum32() % parts)
}

// swapTries bounds how often a part is read again because another settler has changed it.
const swapTries = 50

// ErrContended is returned when others change the same occurrences all the time. The caller tries again later.
var ErrContended = errors.New("the occurrences of a job change all the time")

// All notes that an execution of a parent has ended for an instant. When those of all parents have, as d asks, it claims the execution that
// follows, by c, and returns the claim that stands; nil while one is missing.
func (s Store) All(ctx context.Context, jobID string, d *job.Definition, at time.Time, parent string, succeeded bool, c Claim) (*Claim, error) {
	end := parent + "-"
	if succeeded {
		end = parent + "+"
	}
	var standing *Claim
	err := s.swap(ctx, jobID, at, func(o *occurrence) bool {
		if standing = o.Claim; standing != nil || slices.Contains(o.Ended, end) {
			return false
		}
		o.Ended = append(o.Ended, end)
		if complete(o, d.Schedule.After) {
			standing, o.Claim, o.Ended = &c, &c, nil
		}
		return true
	})
	return standing, err
}

// complete reports whether all parents have ended in a way that is followed.
func complete(o *occurrence, parents []job.Parent) bool {
	for _, p := range parents {
		succeeded, failed := slices.Contains(o.Ended, p.JobID+"+"), slices.Contains(o.Ended, p.JobID+"-")
		if (!succeeded || !p.On.Takes(true)) && (!failed || !p.On.Takes(false)) {
			return false
		}
	}
	return true
}

// Renew is [Store.All] for a claim that was not carried out in time: c takes its place, unless another one did.
func (s Store) Renew(ctx context.Context, jobID string, at time.Time, c Claim) (Claim, error) {
	standing := c
	err := s.swap(ctx, jobID, at, func(o *occurrence) bool {
		if o.Claim != nil && o.Claim.N >= c.N {
			standing = *o.Claim
			return false
		}
		standing, o.Claim, o.Ended = c, &c, nil
		return true
	})
	return standing, err
}

// swap changes an occurrence, if change says so.
func (s Store) swap(ctx context.Context, jobID string, at time.Time, change func(o *occurrence) bool) error {
	name := partName(jobID, partOf(at))
	for range swapTries {
		raw, err := s.Settings.Setting(ctx, name)
		if err != nil {
			return fmt.Errorf("read occurrences: %w", err)
		}
		var list []occurrence
		if raw != nil {
			if err := json.Unmarshal(raw, &list); err != nil { // nobody could ever read it, and what waits must not wait for that
				list = nil
			}
		}
		o := occurrence{At: at.UnixMilli()}
		if i := slices.IndexFunc(list, func(x occurrence) bool { return x.At == o.At }); i >= 0 {
			o = list[i]
			list = slices.Delete(list, i, i+1)
		}
		if !change(&o) {
			return nil
		}
		value, err := json.Marshal(latest(append(list, o)))
		if err != nil {
			return err
		}
		err = s.Settings.SwapSetting(ctx, name, bytes.Clone(raw), value)
		if err == nil {
			return nil
		}
		if !errors.Is(err, jobstore.ErrConflict) {
			return fmt.Errorf("note an occurrence of job %s: %w", jobID, err)
		}
	}
	return ErrContended
}

// latest leaves out the first of those that are too many.
func latest(list []occurrence) []occurrence {
	open, claimed := 0, 0
	for i := range list {
		if list[i].Claim == nil {
			open++
		} else {
			claimed++
		}
	}
	return slices.DeleteFunc(list, func(o occurrence) bool {
		if o.Claim == nil {
			open--
			return open >= mostOpen
		}
		claimed--
		return claimed >= mostClaimed
	})
}

// forgetArrivals removes the occurrences of a job.
func (s Store) forgetArrivals(ctx context.Context, jobID string) error {
	for part := range parts {
		raw, err := s.Settings.Setting(ctx, partName(jobID, part))
		if err == nil && raw != nil {
			err = s.Settings.SwapSetting(ctx, partName(jobID, part), raw, nil)
		}
		if err != nil && !errors.Is(err, jobstore.ErrConflict) {
			return fmt.Errorf("forget occurrences: %w", err)
		}
	}
	return nil
}
