package wire

import (
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	pb "github.com/minutehand/minutehand/schemas/proto/minutehand/v1"
)

// MarshalJob encodes a job's row.
func MarshalJob(j *job.Job) []byte {
	m := &pb.Job{
		JobId: j.ID, TenantId: j.Tenant.String(), Name: j.Name, Labels: j.Labels, Owner: j.Owner, Status: string(j.Status), Deleted: j.Deleted,
		Version: j.Version, CreatedAtMs: ms(j.CreatedAt), UpdatedAtMs: ms(j.UpdatedAt), PausedAtMs: ms(j.PausedAt),
		StoppedExecutions: j.StoppedExecutions, Definition: definitionToPB(&j.Definition), EndsAtMs: ms(j.EndsAt),
		StoppedBeforeMs: ms(j.StoppedBefore), Key: j.Key, Followed: j.Followed,
	}
	for _, c := range j.Changes {
		m.Changes = append(m.Changes, &pb.ChangeRef{Id: c.ID, Version: c.Version})
	}
	for i := range j.Notify {
		n := &j.Notify[i]
		x := &pb.Notify{Target: targetToPB(n.Target), QuietMs: n.Quiet.Milliseconds()}
		for _, c := range n.On {
			x.On = append(x.On, string(c))
		}
		putUnknown(x, n.Unknown)
		m.Notify = append(m.Notify, x)
	}
	putUnknown(m, j.Unknown)
	return marshal(m)
}

// UnmarshalJob decodes a job's row.
func UnmarshalJob(b []byte) (job.Job, error) {
	var m pb.Job
	if err := m.UnmarshalVT(b); err != nil {
		return job.Job{}, fmt.Errorf("wire: job: %w", err)
	}
	tenant, err := job.ParseTenant(m.GetTenantId())
	if err != nil {
		return job.Job{}, fmt.Errorf("wire: job: %w", err)
	}
	j := job.Job{
		ID: m.GetJobId(), Tenant: tenant, Name: m.GetName(), Labels: m.GetLabels(), Owner: m.GetOwner(), Status: job.Status(m.GetStatus()),
		Deleted: m.GetDeleted(), Version: m.GetVersion(), CreatedAt: at(m.GetCreatedAtMs()), UpdatedAt: at(m.GetUpdatedAtMs()),
		PausedAt: at(m.GetPausedAtMs()), StoppedExecutions: m.GetStoppedExecutions(),
		Definition: definitionFromPB(m.GetDefinition()), EndsAt: at(m.GetEndsAtMs()), StoppedBefore: at(m.GetStoppedBeforeMs()), Key: m.GetKey(),
		Followed: m.GetFollowed(), Unknown: unknownOf(&m),
	}
	for _, c := range m.GetChanges() {
		j.Changes = append(j.Changes, job.ChangeRef{ID: c.GetId(), Version: c.GetVersion()})
	}
	for _, x := range m.GetNotify() {
		n := job.Notify{Target: targetFromPB(x.GetTarget()), Quiet: dur(x.GetQuietMs()), Unknown: unknownOf(x)}
		for _, c := range x.GetOn() {
			n.On = append(n.On, job.Cause(c))
		}
		j.Notify = append(j.Notify, n)
	}
	return j, nil
}

// MarshalDefinition encodes a definition's row.
func MarshalDefinition(d *job.Definition) []byte { return marshal(definitionToPB(d)) }

// UnmarshalDefinition decodes a definition's row.
func UnmarshalDefinition(b []byte) (job.Definition, error) {
	var m pb.Definition
	if err := m.UnmarshalVT(b); err != nil {
		return job.Definition{}, fmt.Errorf("wire: definition: %w", err)
	}
	return definitionFromPB(&m), nil
}

func definitionToPB(d *job.Definition) *pb.Definition {
	s := &d.Schedule
	m := &pb.Definition{
		DefinitionId: d.ID, EffectiveAtMs: ms(d.EffectiveAt), FirstOrdinal: int64(d.FirstOrdinal),
		Schedule: &pb.Schedule{
			Type: string(s.Type), RunAtMs: maybeMs(s.RunAt), CronExpr: s.CronExpr, Timezone: s.Timezone,
			DstGap: string(s.DST.Gap), DstFold: string(s.DST.Fold), EveryMs: s.Every.Milliseconds(),
			StartAtMs: maybeMs(s.StartAt), EndAtMs: maybeMs(s.EndAt), MaxOccurrences: int64(s.MaxOccurrences),
			JitterMs: s.Jitter.Milliseconds(), SpreadMs: s.Spread.Milliseconds(), All: s.All,
		},
		Target: targetToPB(d.Target), Retry: retryToPB(d.Retry), MissedRunPolicy: string(d.MissedRun),
		CatchUpWindowMs: d.CatchUpWindow.Milliseconds(), MaxBackfill: int64(d.MaxBackfill), OverlapPolicy: string(d.Overlap),
		Priority: d.Priority, Precision: uint32(d.Precision),
		StartWithinMs: d.Deadlines.StartWithin.Milliseconds(), FinishWithinMs: d.Deadlines.FinishWithin.Milliseconds(),
	}
	for _, x := range s.After {
		m.Schedule.After = append(m.Schedule.After, &pb.Parent{JobId: x.JobID, Named: x.Named, On: string(x.On)})
	}
	putUnknown(m.Schedule, s.Unknown)
	putUnknown(m, d.Unknown)
	return m
}

func definitionFromPB(m *pb.Definition) job.Definition {
	s := m.GetSchedule()
	if s == nil {
		s = &pb.Schedule{}
	}
	var after []job.Parent
	for _, x := range s.GetAfter() {
		after = append(after, job.Parent{JobID: x.GetJobId(), Named: x.GetNamed(), On: job.On(x.GetOn())})
	}
	return job.Definition{
		ID: m.GetDefinitionId(), EffectiveAt: at(m.GetEffectiveAtMs()), FirstOrdinal: int(m.GetFirstOrdinal()),
		Schedule: job.Schedule{
			Type: job.ScheduleType(s.GetType()), RunAt: maybeAt(s.RunAtMs), CronExpr: s.GetCronExpr(), Timezone: s.GetTimezone(),
			DST:   job.DST{Gap: job.GapPolicy(s.GetDstGap()), Fold: job.FoldPolicy(s.GetDstFold())},
			Every: dur(s.GetEveryMs()), StartAt: maybeAt(s.StartAtMs), EndAt: maybeAt(s.EndAtMs),
			MaxOccurrences: int(s.GetMaxOccurrences()), Jitter: dur(s.GetJitterMs()), Spread: dur(s.GetSpreadMs()), After: after, All: s.GetAll(),
			Unknown: unknownOf(s),
		},
		Target: targetFromPB(m.GetTarget()), Retry: retryFromPB(m.GetRetry()), MissedRun: job.MissedRun(m.GetMissedRunPolicy()),
		CatchUpWindow: dur(m.GetCatchUpWindowMs()), MaxBackfill: int(m.GetMaxBackfill()), Overlap: job.Overlap(m.GetOverlapPolicy()),
		Priority: m.GetPriority(), Precision: job.PrecisionOf(m.GetPrecision()),
		Deadlines: job.Deadlines{StartWithin: dur(m.GetStartWithinMs()), FinishWithin: dur(m.GetFinishWithinMs())}, Unknown: unknownOf(m),
	}
}

// maybeMs and maybeAt are for instants that a client supplies: the epoch itself is one of them.
func maybeMs(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	v := t.UnixMilli()
	return &v
}

func maybeAt(ms *int64) time.Time {
	if ms == nil {
		return time.Time{}
	}
	return time.UnixMilli(*ms).UTC()
}

// MarshalRuns encodes the keys of entries, the same ones in the same way each time.
func MarshalRuns(list []job.Locator) []byte {
	m := &pb.Runs{}
	for _, l := range list {
		m.Runs = append(m.Runs, &pb.Run{
			Partition: uint32(l.Partition), Minute: l.Minute, DueAtMs: ms(l.DueAt), ExecutionId: l.ExecutionID, Attempt: uint32(l.Attempt),
			DefinitionId: l.DefinitionID,
		})
	}
	return marshal(m)
}

// UnmarshalRuns decodes the keys of entries.
func UnmarshalRuns(b []byte) ([]job.Locator, error) {
	var m pb.Runs
	if err := m.UnmarshalVT(b); err != nil {
		return nil, fmt.Errorf("wire: runs: %w", err)
	}
	var list []job.Locator
	for _, r := range m.Runs {
		list = append(list, job.Locator{
			Partition: int(r.GetPartition()), Minute: r.GetMinute(), DueAt: at(r.GetDueAtMs()), ExecutionID: r.GetExecutionId(), Attempt: int(r.GetAttempt()),
			DefinitionID: r.GetDefinitionId(),
		})
	}
	return list, nil
}
