package wire

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/minutehand/minutehand/libs/job"
	pb "github.com/minutehand/minutehand/schemas/proto/minutehand/v1"
)

// tenantOf returns the tenant that a message names in its entry or, if a release without tenants has copied that, beside it.
func tenantOf(e *pb.Entry, beside string) job.Tenant {
	if t := e.GetTenant(); t != 0 {
		return job.Tenant(t)
	}
	t, err := job.ParseTenant(beside)
	if err != nil {
		return job.DefaultTenant
	}
	return t
}

// unknownOf returns the fields of a message that this release does not know, and putUnknown puts them back. What is copied from message to
// message carries them, so that releases may differ while one follows the other: see job.Note.
func unknownOf(m proto.Message) string { return string(m.ProtoReflect().GetUnknown()) }

func putUnknown(m proto.Message, fields string) {
	if fields != "" {
		m.ProtoReflect().SetUnknown([]byte(fields))
	}
}

func entryToPB(e *job.Entry) *pb.Entry {
	m := &pb.Entry{
		Partition: uint32(e.Partition), Minute: e.Minute, DueAtMs: ms(e.DueAt), ExecutionId: e.ExecutionID,
		Attempt: uint32(e.Attempt), DefinitionId: e.DefinitionID, JobId: e.JobID, Trigger: string(e.Trigger),
		NominalAtMs: ms(e.NominalAt), ScheduledForMs: ms(e.ScheduledFor), Ordinal: int64(e.Ordinal),
		BackfillFired: int64(e.BackfillFired), WrittenAtMs: ms(e.WrittenAt), Chained: e.Chained, Repeats: e.Repeats, Trace: e.Trace,
		Lane: e.Lane, Plain: e.Plain, Weight: uint32(e.Weight), Tenant: uint32(e.Tenant),
		Precision: uint32(e.Precision), Alone: e.Alone, Queues: e.Queues, Followed: e.Followed, Task: e.Task,
	}
	if by := e.By; by != nil {
		m.By = &pb.Author{Subject: by.Subject, Role: by.Role, RequestId: by.Request, Source: by.Source}
	}
	if n := e.Note; n != nil {
		m.SourceExecutionId, m.Tzdata, m.UtcOffsetSeconds = n.Source, n.TZData, int32(n.UTCOffset)
		m.OperationId, m.OccurrenceMs, m.Hops = n.Operation, ms(n.Occurrence), uint32(n.Hops)
		if m.Chain = uint32(n.Chain); n.Elsewhere != nil {
			m.Elsewhere = &pb.Elsewhere{Url: n.Elsewhere.URL, Headers: n.Elsewhere.Headers}
		}
		putUnknown(m, n.Unknown)
	}
	if c := e.Change; c != nil {
		m.Change = &pb.Change{Operation: c.Operation, Version: c.Version, Setting: c.Setting, Object: c.Object}
		m.Trigger = string(job.TriggerSchedule) // for a release that knows no changes
	}
	return m
}

func entryFromPB(m *pb.Entry) job.Entry {
	e := job.Entry{
		Locator: job.Locator{
			Partition: int(m.GetPartition()), Minute: m.GetMinute(), DueAt: at(m.GetDueAtMs()),
			ExecutionID: m.GetExecutionId(), Attempt: int(m.GetAttempt()), DefinitionID: m.GetDefinitionId(),
		},
		JobID: m.GetJobId(), Trigger: job.Trigger(m.GetTrigger()), NominalAt: at(m.GetNominalAtMs()),
		ScheduledFor: at(m.GetScheduledForMs()), Ordinal: int(m.GetOrdinal()), BackfillFired: int(m.GetBackfillFired()),
		WrittenAt: at(m.GetWrittenAtMs()), Chained: m.GetChained(), Repeats: m.GetRepeats(), Trace: m.GetTrace(),
		Lane: m.GetLane(), Plain: m.GetPlain(), Weight: int(m.GetWeight()), Tenant: job.Tenant(m.GetTenant()),
		Precision: job.PrecisionOf(m.GetPrecision()), Alone: m.GetAlone(), Queues: m.GetQueues(), Followed: m.GetFollowed(), Task: m.GetTask(),
	}
	if by := m.GetBy(); by != nil {
		e.By = &job.Author{Subject: by.GetSubject(), Role: by.GetRole(), Request: by.GetRequestId(), Source: by.GetSource()}
	}
	n := job.Note{
		Source: m.GetSourceExecutionId(), Operation: m.GetOperationId(), Occurrence: at(m.GetOccurrenceMs()),
		TZData: m.GetTzdata(), UTCOffset: int(m.GetUtcOffsetSeconds()), Hops: int(m.GetHops()), Chain: int(m.GetChain()), Unknown: unknownOf(m),
	}
	if x := m.GetElsewhere(); x != nil {
		n.Elsewhere = &job.Elsewhere{URL: x.GetUrl(), Headers: x.GetHeaders()}
	}
	if n != (job.Note{}) {
		e.Note = &n
	}
	if c := m.GetChange(); c != nil {
		e.Change = &job.Change{Operation: c.GetOperation(), Version: c.GetVersion(), Setting: c.GetSetting(), Object: c.GetObject()}
		e.Trigger = job.TriggerChange
	}
	return e
}

func rangeToPB(r *job.SkippedRange) *pb.SkippedRange {
	if r == nil {
		return nil
	}
	return &pb.SkippedRange{FromMs: ms(r.From), ToMs: ms(r.To), Count: int64(r.Count)}
}

func rangeFromPB(m *pb.SkippedRange) *job.SkippedRange {
	if m == nil {
		return nil
	}
	return &job.SkippedRange{From: at(m.FromMs), To: at(m.ToMs), Count: int(m.Count)}
}

func targetToPB(t job.Target) *pb.Target {
	m := &pb.Target{
		Kind: t.Kind, Url: t.URL, Method: t.Method, Headers: t.Headers, Body: t.Body, TimeoutMs: t.Timeout.Milliseconds(),
		KeyTemplate: t.KeyTemplate, Connection: t.Connection, Queue: t.Queue, Group: t.Group,
		Pool: t.Pool, Handler: t.Handler, Priority: string(t.Priority), HeartbeatMs: t.Heartbeat.Milliseconds(),
	}
	if r := t.BodyRef; r != nil {
		m.BodyRef = &pb.BodyRef{Url: r.URL, Sha256: r.SHA256}
	}
	putUnknown(m, t.Unknown)
	return m
}

func targetFromPB(m *pb.Target) job.Target {
	t := job.Target{
		Kind: m.GetKind(), URL: m.GetUrl(), Method: m.GetMethod(), Headers: m.GetHeaders(), Body: m.GetBody(),
		Timeout: dur(m.GetTimeoutMs()), KeyTemplate: m.GetKeyTemplate(), Connection: m.GetConnection(), Queue: m.GetQueue(), Group: m.GetGroup(),
		Pool: m.GetPool(), Handler: m.GetHandler(), Priority: job.Priority(m.GetPriority()), Heartbeat: dur(m.GetHeartbeatMs()),
		Unknown: unknownOf(m),
	}
	if r := m.GetBodyRef(); r != nil {
		t.BodyRef = &job.BodyRef{URL: r.GetUrl(), SHA256: r.GetSha256()}
	}
	return t
}

func retryToPB(r job.RetryPolicy) *pb.RetryPolicy {
	m := &pb.RetryPolicy{
		Backoff: string(r.Backoff), MaxAttempts: int64(r.MaxAttempts), BaseDelayMs: r.BaseDelay.Milliseconds(),
		MaxDelayMs: r.MaxDelay.Milliseconds(), Jitter: r.Jitter, WindowMs: r.Window.Milliseconds(),
	}
	putUnknown(m, r.Unknown)
	for _, d := range r.Delays {
		m.DelaysMs = append(m.DelaysMs, d.Milliseconds())
	}
	return m
}

func retryFromPB(m *pb.RetryPolicy) job.RetryPolicy {
	r := job.RetryPolicy{
		Backoff: job.Backoff(m.GetBackoff()), MaxAttempts: int(m.GetMaxAttempts()), BaseDelay: dur(m.GetBaseDelayMs()),
		MaxDelay: dur(m.GetMaxDelayMs()), Jitter: m.GetJitter(), Window: dur(m.GetWindowMs()),
		Unknown: unknownOf(m),
	}
	for _, d := range m.GetDelaysMs() {
		r.Delays = append(r.Delays, dur(d))
	}
	return r
}

func outcomeToPB(o *job.Outcome) *pb.Outcome {
	return &pb.Outcome{
		Kind: string(o.Kind), Retryable: o.Retryable, Disposition: string(o.Disposition),
		Token:        &pb.Token{Epoch: o.Fence.Epoch, Counter: o.Fence.Counter, Start: o.Fence.Start},
		StatusCode:   int32(o.StatusCode),
		ResponseBody: o.ResponseBody, ResponseTruncated: o.ResponseTruncated,
		// An error text may contain foreign bytes (a name from a certificate, a header); Protobuf requires UTF-8.
		Error: strings.ToValidUTF8(o.Error, "?"), RetryAfterMs: o.RetryAfter.Milliseconds(), PauseJob: o.PauseJob,
		DefinitionId: o.DefinitionID, Worker: o.Worker, RequestBytes: o.RequestBytes, ResponseBytes: o.ResponseBytes,
		GaveWayToMs: ms(o.GaveWayTo),
		Timeline: &pb.Timeline{
			TakenMs: ms(o.Timeline.Taken), PublishedMs: ms(o.Timeline.Published), ConsumedMs: ms(o.Timeline.Consumed),
			InvokedMs: ms(o.Timeline.Invoked), CompletedMs: ms(o.Timeline.Completed),
		},
	}
}

func outcomeFromPB(m *pb.Outcome) job.Outcome {
	tl := m.GetTimeline()
	return job.Outcome{
		Kind: job.OutcomeKind(m.GetKind()), Retryable: m.GetRetryable(), Disposition: job.Disposition(m.GetDisposition()),
		Fence: job.Fence{
			Epoch: m.GetToken().GetEpoch(), Counter: m.GetToken().GetCounter(), Start: m.GetToken().GetStart(),
		},
		StatusCode: int(m.GetStatusCode()), ResponseBody: m.GetResponseBody(), ResponseTruncated: m.GetResponseTruncated(),
		Error: m.GetError(), RetryAfter: dur(m.GetRetryAfterMs()), PauseJob: m.GetPauseJob(),
		GaveWayTo: at(m.GetGaveWayToMs()), DefinitionID: m.GetDefinitionId(), Worker: m.GetWorker(), RequestBytes: m.GetRequestBytes(), ResponseBytes: m.GetResponseBytes(),
		Timeline: job.Timeline{
			Taken: at(tl.GetTakenMs()), Published: at(tl.GetPublishedMs()), Consumed: at(tl.GetConsumedMs()),
			Invoked: at(tl.GetInvokedMs()), Completed: at(tl.GetCompletedMs()),
		},
	}
}

func eventToPB(e *job.Event) *pb.Event {
	m := &pb.Event{
		EventId: e.ID, Type: string(e.Type), AtMs: ms(e.At), TenantId: e.Entry.Tenant.String(), Entry: entryToPB(&e.Entry),
		DeferUntilMs: ms(e.DeferUntil), WaitsForMs: ms(e.WaitsFor), Skipped: rangeToPB(e.Skipped), Disposition: string(e.Disposition),
		TargetHost: e.Target.Host, TargetKind: e.Target.Kind,
		StartWithinMs: e.Deadlines.StartWithin.Milliseconds(), FinishWithinMs: e.Deadlines.FinishWithin.Milliseconds(),
	}
	if m.TargetKind == job.TargetWebhook && m.TargetHost != "" {
		m.TargetKind = ""
	}
	if e.Type == job.EventChange {
		m.Type = string(job.EventReleased)
	}
	if e.Type == job.EventAttempt {
		m.Outcome = outcomeToPB(&e.Outcome)
		m.Retry = retryToPB(e.Retry)
	}
	return m
}

func eventFromPB(m *pb.Event) job.Event {
	e := job.Event{
		ID: m.GetEventId(), Type: job.EventType(m.GetType()), At: at(m.GetAtMs()),
		Entry: entryFromPB(m.GetEntry()), DeferUntil: at(m.GetDeferUntilMs()), WaitsFor: at(m.GetWaitsForMs()), Skipped: rangeFromPB(m.GetSkipped()),
		Disposition: job.Disposition(m.GetDisposition()), Target: job.TargetRef{Kind: m.GetTargetKind(), Host: m.GetTargetHost()},
		Deadlines: job.Deadlines{StartWithin: dur(m.GetStartWithinMs()), FinishWithin: dur(m.GetFinishWithinMs())},
	}
	if e.Target.Kind == "" && e.Target.Host != "" {
		e.Target.Kind = job.TargetWebhook
	}
	e.Entry.Tenant = tenantOf(m.GetEntry(), m.GetTenantId())
	if e.Type == job.EventReleased && e.Entry.Change != nil {
		e.Type = job.EventChange
	}
	if e.Type == job.EventAttempt {
		e.Outcome = outcomeFromPB(m.GetOutcome())
		e.Retry = retryFromPB(m.GetRetry())
	}
	return e
}
