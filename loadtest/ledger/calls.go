package ledger

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
)

// checkCalls checks I2 and I5: one call without a crash, another token after a crash, and never early.
func checkCalls(r *report, a *Account, i *index) {
	for k, calls := range i.calls {
		tokens := map[string]bool{}
		for _, c := range calls {
			if early := c.ScheduledFor.Sub(c.At.Add(c.AheadAtLook)); k.attempt == 1 && early > 0 && !follows(k.executionID) {
				r.add("I5", c.JobID, "execution %s was invoked %s early", k.executionID, early)
			}
			if early := i.tooEarly(k, &c, a.RetryAfter[c.JobID]); early > 0 {
				r.add("I5", c.JobID, "attempt %d of %s was invoked %s before its pause was over", k.attempt, k.executionID, early)
			}
			if tokens[c.Token] {
				r.add("I2", c.JobID, "attempt %d of %s was invoked twice under token %s", k.attempt, k.executionID, c.Token)
			}
			tokens[c.Token] = true
			if c.Key != "" && !i.keyOf(&c) {
				r.add("I2", c.JobID, "a call of %s carried the idempotency key %q", k.executionID, c.Key)
			}
		}
		kept := slices.DeleteFunc(slices.Clone(calls), func(c Call) bool { return c.GivenBack })
		if len(kept) > 1 && !a.Crashed {
			r.add("I2", calls[0].JobID, "attempt %d of %s was invoked %d times without a crash", k.attempt, k.executionID, len(kept))
		}
	}
}

// KeyOf returns the idempotency key in the headers of a call, also if these did not cross a network, which would have changed their case.
func KeyOf(h http.Header) string {
	for name, values := range h {
		if strings.EqualFold(name, "Idempotency-Key") && len(values) > 0 {
			return values[0]
		}
	}
	return ""
}

// follows reports whether an execution follows another one. Its calls tell the instant of that one, and not when they were due.
func follows(executionID string) bool {
	ref, err := job.ParseExecutionID(executionID)
	return err == nil && ref.Trigger == job.TriggerAfter
}

// keyOf reports whether a call carried the idempotency key of its execution, under one of the definitions of its job.
func (i *index) keyOf(c *Call) bool {
	definitions := i.definitions[c.JobID]
	ref, err := job.ParseExecutionID(c.ExecutionID)
	e := job.Entry{JobID: c.JobID, NominalAt: ref.NominalAt, Locator: job.Locator{ExecutionID: c.ExecutionID}}
	if standsForAnother(ref.Trigger) { // and tells its target of that
		e.NominalAt = c.ScheduledFor
	}
	return len(definitions) == 0 || err == nil && slices.ContainsFunc(definitions, func(d *job.Definition) bool {
		return d.Target.IdempotencyKey(&e) == c.Key
	})
}

// tooEarly returns by how much a retry came too soon after the attempt before it, by the clocks of the processes that had them: least is
// the shortest pause.
//
// The first end of the attempt before counts, because the retry follows from that. If the hot tier forgets that end, a copy of the first entry,
// which a slow registration wrote (decision 15), may have the attempt called once more just before the retry.
func (i *index) tooEarly(k attemptKey, c *Call, least time.Duration) (early time.Duration) {
	if least == 0 { // it is not known
		return 0
	}
	after := func(begins time.Time) time.Duration { // instants are whole milliseconds
		return least - c.At.Add(c.AheadAtLook).Sub(begins) - time.Millisecond
	}
	first := true
	for _, before := range i.calls[attemptKey{k.executionID, k.attempt - 1}] {
		if before.At.After(c.At) { // by an executor that stalled: the attempt had been given up as lost
			continue
		}
		if by := after(pauseBegins(&before)); first || by < early {
			early, first = by, false
		}
	}
	events := i.attempts[k.executionID]
	if first && k.attempt > 1 && !lostAt(events, k.attempt-1) {
		return least // there was no previous attempt
	}
	for _, e := range events { // the target need not have seen an attempt that was lost
		if e.Entry.Attempt == k.attempt-1 && lost(e) {
			early = min(early, after(e.Outcome.Timeline.Completed))
		}
	}
	return early
}

// pauseBegins returns the earliest instant, by its executor's clock, at which the attempt of a call may have ended. That
// clock may be set back during the call. And an executor that stalled after its last check may call when its lease has
// expired, and the attempt was given up as lost.
func pauseBegins(c *Call) time.Time {
	begins := c.At.Add(c.Ahead)
	if over := c.CheckedAt.Add(lease).Add(c.Ahead); !c.CheckedAt.IsZero() && over.Before(begins) {
		begins = over
	}
	if end := c.EndedAt.Add(c.AheadAtEnd); !c.EndedAt.IsZero() && end.Before(begins) {
		begins = end
	}
	return begins
}

// lease is how long an executor keeps an attempt without renewing its lease, by default.
const lease = 10 * time.Second

// checkFences checks the second half of I2: every later invocation of an execution has a greater token. Invocations are
// ordered by the instant at which the last check was accepted, where that is known, because one request may overtake
// another. Invocations accepted by a server that was replaced are a sequence of their own.
func checkFences(r *report, a *Account) {
	type sequence struct {
		executionID string
		replaced    bool
	}
	byExecution := map[sequence][]Call{}
	for _, c := range a.Calls {
		if !c.CheckedAt.IsZero() {
			s := sequence{c.ExecutionID, c.Replaced}
			byExecution[s] = append(byExecution[s], c)
		}
	}
	for s, calls := range byExecution {
		slices.SortFunc(calls, func(a, b Call) int {
			return cmp.Or(a.CheckedAt.Compare(b.CheckedAt), cmp.Compare(a.Token, b.Token))
		})
		for i := 1; i < len(calls); i++ {
			if last, c := calls[i-1], calls[i]; c.Token <= last.Token {
				r.add("I2", c.JobID, "%s was invoked under token %s, and %s later under %s", s.executionID, last.Token, c.CheckedAt.Sub(last.CheckedAt), c.Token)
			}
		}
	}
}

// checkStops checks I4: what a stop forbids does not begin after the stop was acknowledged.
func checkStops(r *report, a *Account) {
	byJob := map[string][]Call{}
	for _, c := range a.Calls {
		byJob[c.JobID] = append(byJob[c.JobID], c)
	}
	for _, s := range a.Stops {
		for _, c := range byJob[s.JobID] {
			begins, atLatest := c.CheckedAt, c.CheckedAt
			if begins.IsZero() {
				begins, atLatest = c.At.Add(-a.Travel), c.At
			}
			if begins.After(s.AckedAt) && stops(&s, &c, atLatest) {
				r.add("I4", s.JobID, "%s (attempt %d) began %s after a %s was acknowledged", c.ExecutionID, c.Attempt,
					begins.Sub(s.AckedAt), s.Kind)
			}
		}
	}
}

// stops reports whether a stop forbids a call that begins no later than atLatest.
func stops(s *Stop, c *Call, atLatest time.Time) bool {
	ref, err := job.ParseExecutionID(c.ExecutionID)
	if err != nil {
		return true
	}
	first := c.Attempt == 1 && ref.Trigger == job.TriggerSchedule
	switch s.Kind {
	case StopPause:
		first = first || c.Attempt == 1 && ref.Trigger == job.TriggerAfter
		return first && (s.ResumedAt.IsZero() || atLatest.Before(s.ResumedAt))
	case StopExecution:
		return c.ExecutionID == s.ExecutionID
	case StopUpdate:
		return first && slices.Contains(s.OldHosts, c.Host) && !ref.NominalAt.Before(s.EffectiveAt)
	}
	return true
}

// checkAttempts checks I7: never more attempts than the policy allows, and what was invoked in vain is a dead letter.
func checkAttempts(r *report, a *Account, i *index) {
	unsettled := a.unsettled()
	for x, events := range i.attempts {
		last, ended := events[0], false
		outcomes := map[int]*job.Outcome{}
		for _, e := range events {
			k := e.Outcome.Kind
			ended = ended || k == job.OutcomeSucceeded || k == job.OutcomeSkipped || k == job.OutcomeCancelled
			if o := outcomes[e.Entry.Attempt]; o != nil && !a.HotLost && (o.Kind != e.Outcome.Kind || o.Fence != e.Outcome.Fence) {
				r.add("I7", e.Entry.JobID, "attempt %d of %s ended with %s under token %s and with %s under %s", e.Entry.Attempt, x,
					o.Kind, o.Fence, e.Outcome.Kind, e.Outcome.Fence)
			}
			outcomes[e.Entry.Attempt] = &e.Outcome
			if e.Entry.Attempt > last.Entry.Attempt {
				last = e
			}
			if most := e.Retry.MaxAttempts; most > 0 && e.Entry.Attempt > most {
				r.add("I7", e.Entry.JobID, "%s had attempt %d of at most %d", x, e.Entry.Attempt, most)
			}
		}
		if !ended && !i.deadLetter[x] && last.Entry.Elsewhere() == nil && !pendingAttempt(i, last) && !unsettled[x] {
			r.add("I7", last.Entry.JobID, "%s ended with %s and is neither a dead letter nor has another attempt", x,
				last.Outcome.Kind)
		}
		if ended && i.deadLetter[x] && !a.Crashed { // after a crash an attempt that was given up may come again
			r.add("I7", last.Entry.JobID, "%s ended otherwise and is a dead letter all the same", x)
		}
	}
}

// unsettled returns the executions of which an event was lost before the retry-manager had read it. The hot tier knows
// their outcomes, unless it was lost as well.
func (a *Account) unsettled() map[string]bool {
	executions := map[string]bool{}
	for n := range a.LostToSettle {
		executions[a.LostToSettle[n].Entry.ExecutionID] = a.HotLost
	}
	return executions
}

func pendingAttempt(i *index, last *job.Event) bool {
	for _, p := range i.pendingOf[last.Entry.JobID] {
		if !p.Done && p.ExecutionID == last.Entry.ExecutionID {
			return true
		}
	}
	return false
}

// checkArchive checks I8: the archive holds every record of the log exactly once, without a gap, and has the same events as
// the history. (Two records may hold the same event: the ids are compared.)
func checkArchive(r *report, a *Account) {
	type log struct {
		id        string
		partition int64
	}
	type place struct {
		log
		offset int64
	}
	places := map[place]bool{}
	ends := map[log]int64{}
	archived := map[string]bool{}
	for _, x := range a.Archived {
		l := log{x.LogID, x.Partition}
		p := place{l, x.Offset}
		if places[p] && !shortened(a, &x) {
			r.add("I8", "", "record %d of partition %d of log %s is in the archive twice", x.Offset, x.Partition, x.LogID)
		}
		places[p] = true
		ends[l] = max(ends[l], x.Offset+1)
		archived[x.EventID] = true
	}
	for l, end := range ends {
		for offset := range end {
			if !places[place{l, offset}] {
				r.add("I8", "", "record %d of partition %d of log %s is missing in the archive", offset, l.partition, l.id)
			}
		}
	}
	for _, id := range missing(a.Events, a.LostToArchive, archived) {
		r.add("I8", "", "event %s is in the history and not in the archive", id)
	}
	history := map[string]bool{}
	for n := range a.Events {
		history[a.Events[n].ID] = true
	}
	for n := range a.LostToHistory {
		history[a.LostToHistory[n].ID] = true
	}
	for id := range archived {
		if !history[id] {
			r.add("I8", "", "event %s is in the archive and not in the history", id)
		}
	}
}

// shortened reports whether a log had lost the place of an event, and may have given it to another event.
func shortened(a *Account, x *Archived) bool {
	return slices.ContainsFunc(a.Shortened, func(end dispatch.Position) bool {
		return end.LogID == x.LogID && x.Offset >= end.Offsets[int(x.Partition)]
	})
}

// missing returns the ids of events that are neither present nor excused.
func missing(events, excused []job.Event, there map[string]bool) (ids []string) {
	excuse := map[string]bool{}
	for n := range excused {
		excuse[excused[n].ID] = true
	}
	for n := range events {
		if id := events[n].ID; !there[id] && !excuse[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// Lateness returns how late the first attempts of a run were called, in no particular order. What stands for a former occurrence is not among
// them: its calls do not tell when they were due.
func Lateness(calls []Call) []time.Duration {
	var late []time.Duration
	for _, c := range calls {
		ref, err := job.ParseExecutionID(c.ExecutionID)
		if former := err == nil && standsForAnother(ref.Trigger); c.Attempt == 1 && !former {
			late = append(late, c.At.Sub(c.ScheduledFor))
		}
	}
	return late
}
