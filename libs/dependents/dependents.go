// Package dependents knows which jobs follow others (decision 60): whether one may, who follows a job, and when all have had an occurrence.
//
// It promises: from the answer to a request that lets a job follow another one on, that one's row says that it is followed, and its list names
// the job. Both may say more than is true: what a job follows stands in its own row.
package dependents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// Store holds what is known of dependents.
type Store struct {
	Jobs     jobstore.Jobs
	Settings jobstore.Settings
}

// followed begins the names of the lists, which end with the job that is followed.
const followed = "dependents/"

// Dependent is a job that was to follow another one, from an instant on.
type Dependent struct {
	JobID string    `json:"-"`
	At    time.Time `json:"at"`
}

// mostNames bounds the names in a list: also of those that follow the job no more.
const mostNames = 2 * job.MaxDependents

// ErrMany is returned when a job has [job.MaxDependents] dependents.
var ErrMany = errors.New("the job has as many dependents as it may have")

// rowComes is how long after its name was listed the row of a dependent may still be on its way: as long as its request may be repeated.
const rowComes = jobstore.KeyTTL + time.Hour

// Of returns who may follow a job.
func (s Store) Of(ctx context.Context, jobID string) ([]Dependent, error) {
	items, err := s.Settings.Items(ctx, followed+jobID, "", 2*mostNames)
	if err != nil {
		return nil, fmt.Errorf("list dependents: %w", err)
	}
	list := make([]Dependent, len(items))
	for i := range items {
		list[i].JobID = items[i].Name
		_ = json.Unmarshal(items[i].Value, &list[i]) // of any other text the time is missing, and says nothing
	}
	return list, nil
}

// Leave takes a job that follows none any more out of the list of another one.
func (s Store) Leave(ctx context.Context, parent, jobID string) error {
	if err := s.Settings.RemoveItem(ctx, followed+parent, jobID, 0); err != nil {
		return fmt.Errorf("remove a dependent: %w", err)
	}
	return nil
}

// Rows returns the rows of dependents. Of those that are gone for good, the names are taken out of the list.
func (s Store) Rows(ctx context.Context, parent string, list []Dependent, now time.Time) (map[string]*job.Job, error) {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].JobID
	}
	rows, err := s.Jobs.GetMany(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read dependents: %w", err)
	}
	for i := range list {
		j := rows[list[i].JobID]
		if j == nil && now.Sub(list[i].At) < rowComes || j != nil && j.Status != job.StatusCancelled {
			continue
		}
		delete(rows, list[i].JobID)
		if err := s.Leave(ctx, parent, list[i].JobID); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// Follow lets a job be found as one that follows those of its definition, before its row is written. A crash leaves a name to which no row
// belongs, or one that follows others.
func (s Store) Follow(ctx context.Context, j *job.Job, now time.Time) error {
	for _, p := range j.Definition.Schedule.After {
		if err := s.follow(ctx, p.JobID, j.ID, now); err != nil {
			return err
		}
	}
	return nil
}

func (s Store) follow(ctx context.Context, parent, jobID string, now time.Time) error {
	list, err := s.Of(ctx, parent)
	if err != nil {
		return err
	}
	others := 0
	for _, d := range list {
		if d.JobID != jobID {
			others++
		}
	}
	if others >= job.MaxDependents {
		if others, err = s.count(ctx, parent, jobID, list, now); err != nil {
			return err
		}
	}
	if others >= job.MaxDependents {
		return ErrMany
	}
	value, err := json.Marshal(Dependent{At: now})
	if err != nil {
		return err
	}
	if err := s.Settings.PutItem(ctx, followed+parent, jobstore.Item{Name: jobID, Value: value}); err != nil {
		return fmt.Errorf("list a dependent: %w", err)
	}
	if list, err = s.Of(ctx, parent); err == nil && len(list) > mostNames { // many came at once
		err = errors.Join(ErrMany, s.Leave(ctx, parent, jobID))
	}
	if err != nil {
		return err
	}
	return s.mark(ctx, parent)
}

// count returns how many others follow a job, and takes those out of its list that are gone.
func (s Store) count(ctx context.Context, parent, jobID string, list []Dependent, now time.Time) (others int, err error) {
	rows, err := s.Rows(ctx, parent, list, now)
	if err != nil {
		return 0, err
	}
	for _, d := range list {
		j := rows[d.JobID]
		names := now.Sub(d.At) < rowComes
		if !names && j != nil {
			if _, names = Follows(&j.Definition, parent); !names && now.Sub(d.At) > jobstore.HistoryTTL {
				if err := s.Leave(ctx, parent, d.JobID); err != nil { // nothing that a former definition followed is in progress
					return 0, err
				}
				continue
			}
		}
		if names && d.JobID != jobID {
			others++
		}
	}
	if len(list) >= mostNames {
		return mostNames, nil
	}
	return others, nil
}

// Forget removes what is kept of a job that is removed, as one that is followed and as one that follows.
func (s Store) Forget(ctx context.Context, jobID string) error {
	if err := s.Settings.RemoveList(ctx, followed+jobID); err != nil {
		return fmt.Errorf("forget dependents: %w", err)
	}
	return s.forgetArrivals(ctx, jobID)
}

// markTries bounds how often a row is read again because somebody else has changed it.
const markTries = 20

// mark notes in a job's row that it is followed. That is no change of the job: it needs no stop record, and nobody is told of it.
func (s Store) mark(ctx context.Context, jobID string) error {
	for range markTries {
		j, err := s.Jobs.GetSerial(ctx, jobID) // what a plain read sees of a write that failed, another one may not
		if errors.Is(err, jobstore.ErrNotFound) {
			return nil // it is gone, and nothing of it will be followed
		}
		if err != nil {
			return fmt.Errorf("read job %s: %w", jobID, err)
		}
		if j.Followed {
			return nil
		}
		j.Version++
		j.Followed = true
		if err = s.Jobs.Replace(ctx, j); err == nil {
			return nil
		}
		if !errors.Is(err, jobstore.ErrConflict) {
			return fmt.Errorf("note that job %s is followed: %w", jobID, err)
		}
	}
	return fmt.Errorf("note that job %s is followed: %w", jobID, jobstore.ErrConflict)
}

// Follows returns at which ends of a job's executions a definition follows it; ok is false if it does not.
func Follows(d *job.Definition, parent string) (on job.On, ok bool) {
	i := slices.IndexFunc(d.Schedule.After, func(p job.Parent) bool { return p.JobID == parent })
	if i < 0 {
		return "", false
	}
	return d.Schedule.After[i].On, true
}

// page is how many superseded definitions are read at once.
const page = 20

// InForce returns the definition of a job to which an instant belongs; nil if there was none yet.
func (s Store) InForce(ctx context.Context, j *job.Job, at time.Time) (*job.Definition, error) {
	if !at.Before(j.Definition.EffectiveAt) {
		return &j.Definition, nil
	}
	before := j.Definition.ID
	for {
		list, err := s.Jobs.Definitions(ctx, j.ID, before, page)
		if err != nil {
			return nil, fmt.Errorf("read the definitions of job %s: %w", j.ID, err)
		}
		for i := range list {
			if before = list[i].ID; !at.Before(list[i].EffectiveAt) {
				return &list[i], nil
			}
		}
		if len(list) < page {
			return nil, nil
		}
	}
}

// Definition returns a definition of a job; nil if it is no longer kept.
func (s Store) Definition(ctx context.Context, j *job.Job, id string) (*job.Definition, error) {
	if id == j.Definition.ID {
		return &j.Definition, nil
	}
	d, _, err := s.Jobs.Definition(ctx, j.ID, id)
	if errors.Is(err, jobstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read a definition of job %s: %w", j.ID, err)
	}
	return &d, nil
}
