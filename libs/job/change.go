package job

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// Author is who made a request that changed something, or asked for an execution.
type Author struct {
	// Subject names the principal, Role what it may do: see services/job-api/internal/access.
	Subject, Role string
	// Request is the request's id, Source the address that it came from; "" if the system itself made the change.
	Request, Source string
}

// SystemRole is the role of what the system changes by itself.
const SystemRole = "system"

// Change is what an entry tells that exists so that a change of a row becomes an event. The entry is durable before the row changes,
// so that no crash leaves the one without the other: the worker that takes the entry publishes the event if the row has the change,
// waits while the row may still get it, and drops the entry if the row never will.
type Change struct {
	// Operation is the operation's id in the OpenAPI document.
	Operation string
	// Version is that of the job's row after the change; 0 for a setting.
	Version int64
	// Setting is the name of the setting that was changed; "" for a job.
	Setting string
	// Object is what the operation was about, if not the row itself: an execution, a key, a tenant, a label.
	Object string
}

// ChangeRef is how a row names one of its latest changes.
type ChangeRef struct {
	// ID is the ULID of the change, and its time the instant at which its entry was written.
	ID string `json:"id"`
	// Version is that of the job's row after the change; 0 for a setting.
	Version int64 `json:"version,omitempty"`
	// Of is what stands in the place of a job's id, for a setting: several tenants may have changed it.
	Of string `json:"of,omitempty"`
}

// CreationRef names the creation of a job, whose change has the job's own ULID.
func CreationRef(jobID string) ChangeRef {
	return ChangeRef{ID: strings.TrimPrefix(jobID, JobPrefix), Version: 1}
}

const (
	// MaxChanges bounds the changes that a row names. Those whose events are published make room. The settler's own changes, at most one
	// for each definition, go beyond it: it must not wait for events that it settles itself.
	MaxChanges = 32
	// MaxWorkerChanges bounds them for the changes of workers, which leave room for those that users make.
	MaxWorkerChanges = MaxChanges / 2
	// EnoughChanges is how many changes a row names before it is looked up which of them are published.
	EnoughChanges = 8
)

// changeDefinition stands where entries name a definition. It is smaller than every real one and is none: a release that knows no
// changes takes the entry for one that an update has left behind, and drops it.
const changeDefinition = DefinitionPrefix + "00000000000000000000000000"

// ChangeExecutionID returns the id under which a change of a job, or of what stands in its place, is known.
func ChangeExecutionID(jobID, changeULID string) string {
	return ExecutionPrefix + strings.TrimPrefix(jobID, JobPrefix) + "-c" + changeULID
}

// ChangeLocator returns the key of a change's entry that was written at the instant in the change's id.
func ChangeLocator(partition int, jobID, changeULID string) Locator {
	at := ULIDTime(changeULID)
	return Locator{
		Partition: partition, Minute: Minute(at), DueAt: at, ExecutionID: ChangeExecutionID(jobID, changeULID), Attempt: 1,
		DefinitionID: changeDefinition,
	}
}

// NewChange returns the entry of a change.
func NewChange(l Locator, jobID string, tenant Tenant, c Change, by Author) Entry {
	return Entry{
		Locator: l, JobID: jobID, Tenant: tenant, Trigger: TriggerChange, NominalAt: l.DueAt, ScheduledFor: l.DueAt, WrittenAt: l.DueAt,
		Plain: true, Change: &c, By: &by,
	}
}

// Tells reports whether a row of this version, which names these changes, has the change that an entry tells of; never, that it
// will not get it any more either. The first version of a job is made by the change whose id has the job's own ULID.
func (e *Entry) Tells(version int64, changes []ChangeRef) (has, never bool) {
	_, id, _ := strings.Cut(e.ExecutionID, "-c")
	if e.Change.Version == 1 {
		return version >= 1, false
	}
	has = slices.ContainsFunc(changes, func(r ChangeRef) bool { return r.ID == id })
	return has, !has && e.Change.Version > 0 && version >= e.Change.Version
}

// ChangeEvent returns the event of a change that the row has.
func ChangeEvent(e Entry, now time.Time) Event {
	return Event{ID: eventID(e.ExecutionID, e.Attempt, string(TriggerChange), 0), Type: EventChange, At: now, Entry: e}
}

const changesPrefix = "chg_"

// ChangesOf returns the id under which the history keeps the changes of a job, apart from its executions.
func ChangesOf(jobID string) string { return changesPrefix + strings.TrimPrefix(jobID, JobPrefix) }

// HistoryID returns the id under which the history keeps an execution: its job's, or that of the job's changes.
func (r ExecutionRef) HistoryID() string {
	if r.Trigger == TriggerChange {
		return ChangesOf(r.JobID)
	}
	return r.JobID
}

// HistoryID returns the id under which the history keeps an event.
func (e *Event) HistoryID() string {
	if e.Type == EventChange {
		return ChangesOf(e.Entry.JobID)
	}
	return e.Entry.JobID
}

// Installation and a tenant have changes, too. What stands in the place of a job's id is one of the year 1970, which no job has.

// SettingsOf returns what stands in the place of a job's id for the changes of a tenant's settings and keys.
func SettingsOf(t Tenant) string { return settingsID(uint64(t)) }

// InstallationSettings returns what stands in the place of a job's id for the changes of the installation: its tenants, its own keys,
// and what it holds.
func InstallationSettings() string { return settingsID(1 << 32) }

// OfSettings reports whether an id stands in the place of a job's for the changes of settings.
func OfSettings(id string) bool { return strings.HasPrefix(id, JobPrefix+"0000000000") }

func settingsID(n uint64) string {
	var id ulid.ULID
	binary.BigEndian.PutUint64(id[8:], n)
	return JobPrefix + id.String()
}
