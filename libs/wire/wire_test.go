package wire_test

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
	pb "github.com/minutehand/minutehand/schemas/proto/minutehand/v1"
)

func fill() (job.Fire, job.Event) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 6e6, time.UTC)
	e := job.Entry{
		Locator: job.Locator{Partition: 7, Minute: 99, DueAt: at, ExecutionID: "exe", Attempt: 3, DefinitionID: "def"},
		JobID:   "job", Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at.Add(time.Second), Ordinal: 4,
		BackfillFired: 2, WrittenAt: at, Chained: true, Lane: 1 << 31, Plain: true, Weight: 300, Tenant: 7, Precision: job.PrecisionFast,
		Note: &job.Note{Source: "exe_0", TZData: "2026a", UTCOffset: -12600, Chain: 3, Elsewhere: &job.Elsewhere{URL: "v", Headers: map[string]string{"C": "d"}}}, Followed: true,
	}
	retry := job.DefaultRetryPolicy()
	retry.Delays = []time.Duration{time.Second}
	f := job.Fire{
		Entry: e, Incarnation: "i", Epoch: 5, TakenAt: at, PublishedAt: at, Retry: retry, Fresh: true,
		Deadlines: job.Deadlines{StartWithin: time.Second, FinishWithin: time.Hour},
		Target: job.Target{
			Kind: "http_webhook", URL: "u", Method: "POST", Headers: map[string]string{"A": "b"}, Body: []byte(`{}`), Timeout: time.Second,
			BodyRef: &job.BodyRef{URL: "o", SHA256: "h"},
		},
	}
	o := job.Outcome{
		Kind: job.OutcomeFailed, Retryable: true, Disposition: job.DispositionFired, Fence: job.Fence{Epoch: 1_700_000_000_000_000, Counter: 3, Start: 4}, StatusCode: 500,
		ResponseBody: []byte{0xff}, ResponseTruncated: true, Error: "e", RetryAfter: time.Minute, PauseJob: true, DefinitionID: "def",
		Worker: "executor-0", RequestBytes: 16, ResponseBytes: 17,
		Timeline: job.Timeline{Taken: at, Published: at, Consumed: at, Invoked: at, Completed: at},
	}
	return f, job.AttemptEvent(&f, f.Target.Ref(), o, at)
}

func TestWhatWasEncodedIsDecodedEqual(t *testing.T) {
	f, e := fill()
	if got, err := wire.UnmarshalFire(wire.MarshalFire(&f)); err != nil || !reflect.DeepEqual(got, f) {
		t.Errorf("fire: %+v, %v", got, err)
	}
	if got, err := wire.UnmarshalEntry(wire.MarshalEntry(&f.Entry)); err != nil || !reflect.DeepEqual(got, f.Entry) {
		t.Errorf("entry: %+v, %v", got, err)
	}
	d := job.Decision{
		Fire: true, Next: e.At, NextOrdinal: 3, NextBackfillFired: 1, Skipped: &job.SkippedRange{From: e.At, To: e.At, Count: 2},
	}
	if got, err := wire.UnmarshalDecision(wire.MarshalDecision(d)); err != nil || !reflect.DeepEqual(got, d) {
		t.Errorf("decision: %+v, %v", got, err)
	}
	j := job.Job{
		ID: "job", Tenant: 7, Name: "n", Labels: map[string]string{"a": "b"}, Status: job.StatusPaused, Deleted: true, Version: 3,
		CreatedAt: e.At, UpdatedAt: e.At, PausedAt: e.At, StoppedExecutions: []string{"x"}, Followed: true,
		Definition: job.Definition{
			ID: "def", EffectiveAt: e.At, FirstOrdinal: 2, Target: f.Target, Retry: f.Retry, MissedRun: job.MissedBackfill,
			CatchUpWindow: time.Minute, MaxBackfill: 4, Overlap: job.OverlapSkip, Priority: "p", Precision: job.PrecisionPrecise,
			Schedule: job.Schedule{
				Type: job.ScheduleCron, RunAt: e.At, CronExpr: "c", Timezone: "z", DST: job.DST{Gap: "g", Fold: "f"}, Every: time.Hour,
				StartAt: time.UnixMilli(0).UTC(), EndAt: e.At, MaxOccurrences: 5, Jitter: time.Second, Spread: time.Minute, After: []job.Parent{{JobID: "job_1", Named: "key:a", On: job.OnFailure}}, All: true,
			},
		},
	}
	if got, err := wire.UnmarshalJob(wire.MarshalJob(&j)); err != nil || !reflect.DeepEqual(got, j) {
		t.Errorf("job: %+v, %v", got, err)
	}
	got, err := wire.UnmarshalDefinition(wire.MarshalDefinition(&j.Definition))
	if err != nil || !reflect.DeepEqual(got, j.Definition) {
		t.Errorf("definition: %+v, %v", got, err)
	}
	letter := job.DeadLetter{Event: e, Reason: "permanent", At: e.At}
	if got, err := wire.UnmarshalDeadLetter(wire.MarshalDeadLetter(&letter)); err != nil || !reflect.DeepEqual(got, letter) {
		t.Errorf("dead letter: %+v, %v", got, err)
	}
	for _, e := range []job.Event{
		e, job.DeferredEvent(&f, job.TargetRef{Kind: "sqs", Host: "queue"}, f.DueAt.Add(time.Hour), e.At), job.ReleasedEvent(&f, job.TargetRef{}, e.At),
		job.SkippedEvent(f.Entry, f.Target.Ref(), *d.Skipped, job.DispositionSkippedMissed, e.At),
	} {
		if got, err := wire.UnmarshalEvent(wire.MarshalEvent(&e)); err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("event: %+v, %v", got, err)
		}
	}
}

func FuzzForeignBytesNeverPanic(f *testing.F) {
	fire, event := fill()
	f.Add(wire.MarshalFire(&fire))
	f.Add(wire.MarshalEvent(&event))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = wire.UnmarshalFire(b)
		_, _ = wire.UnmarshalEvent(b)
		_, _ = wire.UnmarshalEntry(b)
		_, _ = wire.UnmarshalDecision(b)
		_, _ = wire.UnmarshalDeadLetter(b)
		_, _ = wire.UnmarshalJob(b)
		_, _ = wire.UnmarshalDefinition(b)
	})
}

// An earlier release must read what this one writes for it, and a fire must not become larger for those who have one tenant.
func TestMessagesOfTheDefaultTenantAreWhatTheyWereBeforeTenants(t *testing.T) {
	f, _ := fill()
	f.Note.Elsewhere = nil // or the length of the entry has another digit
	size := map[job.Tenant][2]int{}
	for _, tenant := range []job.Tenant{job.DefaultTenant, 7, 1<<32 - 1} {
		f.Tenant = tenant
		size[tenant] = [2]int{len(wire.MarshalEntry(&f.Entry)), len(wire.MarshalFire(&f))}
	}
	var m pb.Fire
	f.Tenant = job.DefaultTenant
	if err := proto.Unmarshal(wire.MarshalFire(&f), &m); err != nil || m.GetTenantId() != "default" || m.GetEntry().GetTenant() != 0 {
		t.Errorf("tenant %q, %v", m.GetTenantId(), err)
	}
	m.GetEntry().ProtoReflect().Clear(m.GetEntry().ProtoReflect().Descriptor().Fields().ByName("tenant"))
	if before := proto.Size(&m); before != size[0][1] {
		t.Errorf("a fire has %d bytes, and had %d", size[0][1], before)
	}
	for _, other := range []job.Tenant{7, 1<<32 - 1} {
		if entry, fire := size[other][0]-size[0][0], size[other][1]-size[0][1]; entry != 6 || fire != 7 {
			t.Errorf("tenant %s costs %d bytes in an entry and %d in a fire", other, entry, fire)
		}
	}
}

func TestTenantOfACopyByAnEarlierReleaseIsTheOneBesideIt(t *testing.T) {
	f, e := fill()
	var fire pb.Fire
	var event pb.Event
	for _, m := range []struct {
		text []byte
		into proto.Message
	}{{wire.MarshalFire(&f), &fire}, {wire.MarshalEvent(&e), &event}} {
		if err := proto.Unmarshal(m.text, m.into); err != nil {
			t.Fatal(err)
		}
	}
	fire.Entry.Tenant, event.Entry.Tenant = 0, 0 // it does not know the field
	text, err := proto.Marshal(&fire)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := wire.UnmarshalFire(text); err != nil || got.Tenant != f.Tenant {
		t.Errorf("fire of tenant %s, %v", got.Tenant, err)
	}
	if text, err = proto.Marshal(&event); err != nil {
		t.Fatal(err)
	}
	if got, err := wire.UnmarshalEvent(text); err != nil || got.Entry.Tenant != e.Entry.Tenant {
		t.Errorf("event of tenant %s, %v", got.Entry.Tenant, err)
	}
}

// A worker of a release that knows no changes drops the entry as one that an update has left behind, and a settler marks it done.
func TestChangeLooksToAnEarlierReleaseLikeAnEntryOfNoDefinition(t *testing.T) {
	id := "01M7ZJW5E6D77SAJPXRW35C2CA"
	jobID := job.JobPrefix + id
	entry := job.NewChange(job.ChangeLocator(3, jobID, id), jobID, 7, job.Change{Operation: "pauseJob", Version: 4, Object: "x"},
		job.Author{Subject: "key:mh_1", Role: "editor", Request: "01R", Source: "192.0.2.1"})
	event := job.ChangeEvent(entry, entry.DueAt)
	if got, err := wire.UnmarshalEvent(wire.MarshalEvent(&event)); err != nil || !reflect.DeepEqual(got, event) {
		t.Errorf("read back %+v, %v; want %+v", got, err, event)
	}
	var seen pb.Event
	if err := proto.Unmarshal(wire.MarshalEvent(&event), &seen); err != nil {
		t.Fatal(err)
	}
	e := seen.GetEntry()
	if seen.GetType() != "released" || e.GetTrigger() != "schedule" || e.GetDefinitionId() >= "def_00000000000000000000000001" || !e.GetPlain() {
		t.Errorf("it sees type %q, trigger %q, definition %q", seen.GetType(), e.GetTrigger(), e.GetDefinitionId())
	}
	e.Change, e.By = nil, nil // it does not know them
	text, err := proto.Marshal(&seen)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := wire.UnmarshalEvent(text); err != nil || got.Type != job.EventReleased || got.Entry.Change != nil {
		t.Errorf("what it published again is read as %+v, %v", got, err)
	}
}

func BenchmarkEvent(b *testing.B) {
	_, e := fill()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wire.UnmarshalEvent(wire.MarshalEvent(&e)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFire(b *testing.B) {
	f, _ := fill()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wire.UnmarshalFire(wire.MarshalFire(&f)); err != nil {
			b.Fatal(err)
		}
	}
}

// Otherwise what a later release has added to a job would be gone once this one has paused it, or repeated an attempt of it.
func TestFieldsOfALaterReleaseGoWhereverTheirMessageGoes(t *testing.T) {
	f, _ := fill()
	later := func(n protowire.Number) string {
		return string(protowire.AppendVarint(protowire.AppendTag(nil, 1000+n, protowire.VarintType), 7))
	}
	set := func(m proto.Message, n protowire.Number) { m.ProtoReflect().SetUnknown([]byte(later(n))) }
	entry := &pb.Entry{ExecutionId: "exe"}
	set(entry, 1)
	text, err := proto.Marshal(entry)
	if err != nil {
		t.Fatal(err)
	}
	if f.Entry, err = wire.UnmarshalEntry(text); err != nil {
		t.Fatal(err)
	}
	f.Target.Unknown, f.Retry.Unknown = later(2), later(3)
	fire, err := wire.UnmarshalFire(wire.MarshalFire(&f))
	if err != nil || !reflect.DeepEqual(fire.Target, f.Target) || !reflect.DeepEqual(fire.Retry, f.Retry) {
		t.Errorf("fire: %+v, %v; want target and policy of %+v", fire, err, f)
	}
	event := job.AttemptEvent(&fire, fire.Target.Ref(), job.Outcome{Kind: job.OutcomeFailed, Retryable: true}, f.DueAt)
	if event, err = wire.UnmarshalEvent(wire.MarshalEvent(&event)); err != nil {
		t.Fatal(err)
	}
	next, _ := event.Next()
	again, err := wire.UnmarshalEntry(wire.MarshalEntry(&next))
	if err != nil || again.Note == nil || again.Note.Unknown != later(1) || event.Retry.Unknown != later(3) {
		t.Errorf("the next attempt: %+v, %v; policy %+v", again, err, event.Retry)
	}
	j := job.Job{Tenant: 7, Unknown: later(4), Definition: job.Definition{
		Unknown: later(5), Schedule: job.Schedule{Unknown: later(6)}, Target: f.Target, Retry: f.Retry,
	}}
	if got, err := wire.UnmarshalJob(wire.MarshalJob(&j)); err != nil || !reflect.DeepEqual(got, j) {
		t.Errorf("job: %+v, %v; want %+v", got, err, j)
	}
}
