package job

import "time"

// Locator is the full key of a pending entry's row. It travels with everything that follows from the entry, and only the row it
// names is ever marked done.
type Locator struct {
	Partition    int
	Minute       int64
	DueAt        time.Time
	ExecutionID  string
	Attempt      int
	DefinitionID string
}

// Entry is the cold-store row "attempt N of execution E is due at D". Its contents never change; whether it is done, and a decision
// taken for it, are stored beside it (see [PendingRow]).
type Entry struct {
	Locator
	JobID string
	// Tenant is the job's. It is missing from entries that a release without tenants has copied; the job row has it.
	Tenant       Tenant
	Trigger      Trigger
	NominalAt    time.Time
	ScheduledFor time.Time
	// Ordinal counts the schedule's nominal occurrences from 1.
	Ordinal int
	// BackfillFired is how many missed occurrences were fired in the backfill run that led to this entry. The successor of an entry
	// fired by backfill inherits the number plus one.
	BackfillFired int
	WrittenAt     time.Time
	// Chained marks an entry that carries on an attempt that was taken before: no late rule applies, and no successor follows.
	Chained bool
	// Repeats is the minute of the row that this row repeats because its writer was slow; 0 for none. Whatever was decided there, and
	// whatever followed from it, holds here.
	Repeats int64
	// Trace is the W3C traceparent of the request that asked for the entry; "" for none. Attempts carry it on, successors do not.
	Trace string
	// By is who asked for the execution, or made the change; nil for what the schedule asks for. Attempts carry it on.
	By *Author
	// Change is set for an entry of TriggerChange, and for no other.
	Change *Change
	// Note is what the record says of the entry and nothing decides by; nil for nothing.
	Note *Note
	// Lane, Precision, Plain, Weight, Alone, Queues and Task follow from the definition: see [Definition.Mark].
	Lane      uint32
	Precision Precision
	Plain     bool
	// Weight is the approximate size of the definition, and so of the fire, in bytes.
	Weight int
	// Followed is set in what is published of an entry whose job had dependents when it was taken: they are looked up when its execution ends.
	Followed bool
	// Alone marks an entry of the schedule of a job whose executions may not overlap: the rows of what is in progress are on record. Queues
	// marks those among them of which some wait until others have ended.
	Alone, Queues bool
	// Task marks an entry whose target is a pool: it may wait for a worker, and be worked on, for as long as a day.
	Task bool
}

// Occurrence returns the instant for which the entry's execution stands: of what repeats an occurrence or fills one in that one's nominal
// instant, of anything else its own.
func (e *Entry) Occurrence() time.Time {
	if e.Note != nil && !e.Note.Occurrence.IsZero() {
		return e.Note.Occurrence
	}
	return e.NominalAt
}

// ToldInstant returns the instant that a target is told: of what repeats an occurrence or fills one in that one's, so that the target does what it
// would have done then, of anything else when it was due, with its jitter.
func (e *Entry) ToldInstant() time.Time {
	if e.Note != nil && !e.Note.Occurrence.IsZero() {
		return e.Note.Occurrence
	}
	return e.ScheduledFor
}

// Note is what the archive tells of an entry. It must not be changed: entries that follow from one another share it.
type Note struct {
	// Source is the execution that a redrive or a replay repeats, or that one of another job follows; Operation the one that asked for it.
	Source, Operation string
	// Occurrence is the nominal instant of the occurrence for which the execution stands, where that is not its own.
	Occurrence time.Time
	// TZData is the release of the time zone data by which a local time became the instant, "" if no zone but UTC was asked; UTCOffset is
	// the zone's offset from UTC then, in seconds, greater in the east. Time zones change, and the instant was decided by what was known.
	TZData    string
	UTCOffset int
	// Hops is how many notifications in a row led to the execution, each through a trigger; see [MaxHops].
	Hops int
	// Chain is how many executions in a row it follows; see [MaxChain].
	Chain int
	// Elsewhere is what a replay calls instead of the job's target; nil for that.
	Elsewhere *Elsewhere
	// Unknown is what a later release wrote into the entry and this one does not know, as Protobuf fields. It goes wherever the entry does,
	// so that the later release finds it in the fire, the event, and the entry of the next attempt.
	Unknown string
}

// Elsewhere is where a replay goes that is to reproduce something, and not to do it: it has no consequences. Nothing follows it, nobody is told
// of it, and it does not pause the job. None of the job's headers goes there, because they may be secrets that the job's target shares.
type Elsewhere struct {
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
}

// Elsewhere returns what the execution calls instead of its job's target; nil for that.
func (e *Entry) Elsewhere() *Elsewhere {
	if e.Note == nil {
		return nil
	}
	return e.Note.Elsewhere
}

// Calls returns what the execution of an entry calls whose definition has a target. What goes elsewhere goes to a webhook, whatever the target.
func (e *Entry) Calls(t Target) Target {
	if x := e.Elsewhere(); x != nil {
		if t.Kind != TargetWebhook {
			t = Target{Kind: TargetWebhook, Method: "POST", Body: t.Body, BodyRef: t.BodyRef, Timeout: t.Timeout, KeyTemplate: t.KeyTemplate}
		}
		t.URL, t.Headers = x.URL, x.Headers
	}
	return t
}

// Attended reports whether the entry needs attention at its instant even while its target has no room for it: a successor follows
// from it, or the missed-run policy would skip it later. Any other entry may simply wait.
func (e *Entry) Attended() bool { return e.FirstOfSchedule() && !e.Chained && !e.Plain }

// Mark sets the fields of an entry of the definition by which workers decide before they read the definition:
//   - Lane, the queue in which the entry waits for its target. All entries of one precision for one place share a lane, and two
//     hosts share one only if their hashes collide. 0 is the lane of entries that were written before there were lanes.
//   - Precision, how close to its instant it is called.
//   - Plain, whether nothing follows from the entry and it fires even when it is late.
//   - Weight, its size.
//   - Alone, whether it must be the only one in progress; Queues, whether it may wait for that.
//   - Task, whether a worker of a pool fetches it.
func (d *Definition) Mark(e *Entry) {
	target := e.Calls(d.Target)
	e.Lane, e.Precision = target.Lane(e.Tenant, d.Precision), d.Precision
	e.Plain = d.Schedule.Type == ScheduleOneShot && d.MissedRun != MissedSkip
	e.Alone = e.Trigger == TriggerSchedule && d.Alone()
	e.Queues = e.Alone && d.MostWaiting() > 0
	e.Task = target.Kind == TargetPool
	e.Weight = len(target.URL) + len(target.Queue) + len(target.Group) + len(target.Body)
	if target.BodyRef != nil {
		e.Weight += len(target.BodyRef.URL)
	}
	for name, value := range target.Headers {
		e.Weight += len(name) + len(value)
	}
}

// FirstOfSchedule reports whether the entry stands for an occurrence of the schedule itself, so that the rules for
// outdated, paused and late entries apply and a successor follows from it.
func (e *Entry) FirstOfSchedule() bool { return e.Attempt == 1 && e.Trigger == TriggerSchedule }

// InLine reports whether the entry stands for an occurrence that waits until other executions have ended, or that was deferred by its
// target: it is called in its turn.
func (e *Entry) InLine() bool { return e.Queues && e.Chained && e.FirstOfSchedule() }

// Late reports whether the entry is taken so late that the missed-run policy applies.
func (e *Entry) Late(now time.Time, window time.Duration) bool {
	return e.FirstOfSchedule() && !e.Chained && now.Sub(e.ScheduledFor) > window
}

// PendingRow is an entry as stored in the cold store.
type PendingRow struct {
	Entry
	Done     bool
	Decision *Decision
	// DeferredTo is when the attempt is due again, under another row; zero if it was not deferred.
	DeferredTo time.Time
}

// Decision is what was decided once for an occurrence; every process that finds it carries it out.
type Decision struct {
	// Fire is false when the occurrence itself is skipped: because of the execution of the instant GaveWayTo, or as missed if that is zero.
	// An occurrence that fires once that execution has ended, or takes its place, has both.
	Fire      bool
	GaveWayTo time.Time
	// Skipped is the run of occurrences after this one that will not fire, Disposition what becomes of them.
	Skipped     *SkippedRange
	Disposition Disposition
	// Next is the nominal instant of the successor; zero when the schedule ends here.
	Next        time.Time
	NextOrdinal int
	// NextBackfillFired is what the successor inherits.
	NextBackfillFired int
}

// Waits reports whether the occurrence fires once another execution has ended, or takes its place.
func (d *Decision) Waits() bool { return d.Fire && !d.GaveWayTo.IsZero() }

// Refuses reports whether it is about what comes after an occurrence that a stop refused, and not about that one.
func (d *Decision) Refuses() bool {
	return d.Disposition == DispositionCancelled || d.Disposition == DispositionSkippedPaused
}

// Unfired returns the disposition of the occurrence itself, if it does not fire.
func (d *Decision) Unfired() Disposition {
	if !d.GaveWayTo.IsZero() {
		return DispositionSkippedOverlap
	}
	return DispositionSkippedMissed
}

// SkippedRange is a run of nominal instants that share one disposition, both ends included.
type SkippedRange struct {
	From, To time.Time
	// Count is how many instants the range holds, at most [MaxSkipCount].
	Count int
}

// MaxSkipCount bounds the count of a skipped range; a range with this count holds that many instants or more.
const MaxSkipCount = 100_000

// NewEntry places an entry in the minute of its due time, or of floor when that is later. floor is now for an API write, and the
// start of the parent's bucket for everything that follows from an entry, so that a child's key is a pure function of its parent.
func NewEntry(e Entry, floor time.Time) Entry {
	e.Minute = Minute(Later(e.DueAt, floor))
	return e
}
