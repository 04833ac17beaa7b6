package schedulerworker

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/overlap"
)

// sendLateOneShots carries out the missed-run policy for entries after which nothing follows. What becomes of such an entry
// follows from its definition alone, so it needs no decision on record: the next owner does the same. If one owner skips it
// and another fired it before it was late, the attempt's record decides between them.
func (s *Service) sendLateOneShots(ctx context.Context, tasks []*task, now time.Time) error {
	at := job.Instant(now)
	keys, locators := make([]attempts.Key, len(tasks)), make([]job.Locator, len(tasks))
	for i, t := range tasks {
		keys[i], locators[i] = attempts.KeyOf(t.entry), t.entry.Locator
	}
	records, err := s.deps.Outcomes.Lookup(ctx, keys)
	if err != nil {
		return err
	}
	rows, err := s.deps.Pending.Rows(ctx, locators)
	if err != nil {
		return err
	}
	var fires []*task
	var removed []*job.Entry
	var events []job.Event
	for i, t := range tasks {
		if row, found := rows[t.entry.Locator]; !found || row.Done {
			removed = append(removed, t.entry)
			continue
		} else if d := row.Decision; d != nil && d.Fire { // it was taken in time, and waited for its target
			fires = append(fires, t)
			continue
		}
		event, err := s.missed(ctx, t, records[i], at)
		if err != nil {
			return err
		}
		if event == nil {
			fires = append(fires, t)
			continue
		}
		events, removed = append(events, *event), append(removed, t.entry)
	}
	if err := s.publishEvents(ctx, events); err != nil {
		return err
	}
	s.metrics.late.WithLabelValues(decisionLabel(false)).Add(float64(len(events)))
	if err := s.deps.Hot.Remove(ctx, removed); err != nil {
		return err
	}
	s.metrics.late.WithLabelValues(decisionLabel(true)).Add(float64(len(fires)))
	for _, t := range fires {
		t.bare, t.fresh = true, true
	}
	return s.carryOut(ctx, fires, nil, now)
}

// missed returns the event of a late one_shot that is skipped; nil if it fires, or was dispatched before.
func (s *Service) missed(ctx context.Context, t *task, rec attempts.Record, at time.Time) (*job.Event, error) {
	dispatched := rec.Exists && (rec.Outcome == nil || rec.Outcome.Kind != job.OutcomeSkipped)
	if dispatched || t.series.Def.MissedRun != job.MissedSkip {
		return nil, nil
	}
	return s.skip(ctx, t, job.Decision{}, at)
}

// skip stores that an attempt is skipped by a decision, and returns the event that says so; nil if the attempt was dispatched.
func (s *Service) skip(ctx context.Context, t *task, d job.Decision, at time.Time) (*job.Event, error) {
	o := job.Outcome{Kind: job.OutcomeSkipped, Disposition: d.Unfired(), GaveWayTo: d.GaveWayTo, Timeline: job.Timeline{Completed: at}}
	rec, stored, err := s.deps.Outcomes.Refuse(ctx, attempts.KeyOf(t.entry), o, at)
	if err == nil && !stored && t.alone() && rec.Alive(at) && !rec.Running && !rec.Of(t.entry.DefinitionID) {
		// Around an update an executor may hold the attempt for an entry of the other definition, which it need not call. Until that has
		// begun or was let go, nobody knows whether this occurrence is skipped, nor whether the next one gives way to it.
		return nil, errLater{at.Add(firstLook)}
	}
	if err != nil || !stored && (rec.Outcome == nil || rec.Outcome.Kind != job.OutcomeSkipped) {
		return nil, err
	}
	if !stored { // by another decision, such as one about an entry of another definition
		o = *rec.Outcome
	}
	event := job.AttemptEvent(t.fire(at), t.target(), o, at)
	return &event, nil
}

// sendAside decides about one entry of a recurring schedule by its policies: the one for missed runs if it is late, and the one for
// overlaps. It claims the decision, writes it on the entry's row, and only then carries it out. A worker that takes the entry after a
// crash in between finds the decision, and does the same.
func (s *Service) sendAside(ctx context.Context, t *task, now time.Time) error {
	row, settled, err := s.row(ctx, t)
	if err != nil {
		return err
	}
	if settled {
		return s.remove(ctx, t)
	}
	decision, err := s.decided(ctx, row)
	if err != nil {
		return err
	}
	dispatched := false
	switch {
	case decision == nil:
		if decision, err = s.decide(ctx, t, now); err != nil {
			return err
		}
		dispatched = decision == nil
	case row.Decision == nil: // about the entry that this one repeats
		if dispatched, err = s.successorExists(ctx, t, *decision, now); err != nil {
			return err
		}
	}
	t.fresh = true
	if !dispatched {
		return s.carryOutLate(ctx, t, *decision, now)
	}
	if decision != nil && !decision.Fire {
		if skipped, err := s.skipRepeat(ctx, t, *decision, now); skipped || err != nil {
			return err
		}
	}
	return s.follow(ctx, t, now)
}

// row reads the row of a task's entry. An entry is settled if its row is done, gone, or below the low-water mark: a worker that stalled may write
// the successor of an entry that another worker has dispatched, and make it hot, after the successor has ended and its bucket was closed. Nobody
// marks that row, and the hot tier may have dropped the outcome. The mark is read only for minutes that a loader may have closed.
func (s *Service) row(ctx context.Context, t *task) (row job.PendingRow, settled bool, err error) {
	row, err = s.deps.Pending.Row(ctx, t.entry.Locator)
	if errors.Is(err, jobstore.ErrNotFound) {
		return row, true, nil
	}
	if err != nil || row.Done {
		return row, row.Done, err
	}
	if row.Minute > job.Minute(s.deps.Clock.Now().Add(clock.MaxDifference-jobstore.ClosesAfter)) {
		return row, false, nil
	}
	low, err := s.deps.Pending.LowWater(ctx, row.Partition)
	return row, row.Minute < low, err
}

// follow publishes the fire of an entry that was dispatched before, or seems to have been: as a rule its executor finds how that ended. If
// nothing is known of it, and its executions may not overlap, it waits until those in progress have ended.
func (s *Service) follow(ctx context.Context, t *task, now time.Time) error {
	if t.alone() {
		before, err := s.turn(ctx, t, now)
		if err != nil {
			return err
		}
		if before != "" && t.entry.Queues {
			ref, _ := job.ParseExecutionID(before) // the ids of entries can be parsed
			return s.putInLine(ctx, t, ref.NominalAt)
		}
		if before != "" {
			return s.lookLater(ctx, t, now)
		}
	}
	t.bare = true
	return s.carryOut(ctx, []*task{t}, nil, now)
}

// skipRepeat ends an entry that repeats one of which was decided that it does not fire; everything else was carried out there. If it fired
// all the same, skipped is false.
func (s *Service) skipRepeat(ctx context.Context, t *task, d job.Decision, now time.Time) (skipped bool, err error) {
	event, err := s.skip(ctx, t, d, job.Instant(now))
	if err != nil || event == nil {
		return false, err
	}
	if err := s.publishEvents(ctx, []job.Event{*event}); err != nil {
		return false, err
	}
	return true, s.remove(ctx, t)
}

// errRefused makes the worker judge the entry again. This owner stalled since it judged the entry, and another has refused
// it by the current job row, but may not have published what else that stops.
var errRefused = errors.New("the entry was refused meanwhile")

// refused distinguishes a worker's refusal from other outcomes: no lease came before it.
func refused(o *job.Outcome) bool {
	return o != nil && o.Fence == (job.Fence{}) && (o.Disposition == job.DispositionCancelled || o.Disposition == job.DispositionSkippedPaused)
}

// decided returns what the missed-run policy decided about an entry, or about the one that it repeats; nil for nothing.
func (s *Service) decided(ctx context.Context, row job.PendingRow) (*job.Decision, error) {
	if row.Decision != nil || row.Repeats == 0 {
		return row.Decision, nil
	}
	original := row.Locator
	original.Minute = row.Repeats
	first, err := s.deps.Pending.Row(ctx, original)
	if errors.Is(err, jobstore.ErrNotFound) {
		return nil, nil
	}
	return first.Decision, err
}

// successorExists reports whether the row exists that follows, by the decision, from the entry or from the one that it
// repeats.
func (s *Service) successorExists(ctx context.Context, t *task, d job.Decision, now time.Time) (bool, error) {
	parents := []job.Entry{*t.entry}
	if t.entry.Repeats != 0 {
		original := *t.entry
		original.Minute = t.entry.Repeats
		parents = append(parents, original)
	}
	for _, parent := range parents {
		next, ok := t.series.Successor(&parent, d, now)
		if !ok {
			return false, nil
		}
		_, err := s.deps.Pending.Row(ctx, next.Locator)
		if err == nil || !errors.Is(err, jobstore.ErrNotFound) {
			return err == nil, err
		}
	}
	return false, nil
}

// fireBare makes the task publish its fire at its instant, without chain or policy.
func fireBare(t *task) time.Time {
	t.bare = true
	return t.entry.DueAt
}

// decide returns nil if there are signs that the entry was dispatched before.
func (s *Service) decide(ctx context.Context, t *task, now time.Time) (*job.Decision, error) {
	exists, err := s.successorExists(ctx, t, t.series.OnTime(t.entry), now)
	if err != nil || exists {
		return nil, err
	}
	records, err := s.deps.Outcomes.Lookup(ctx, []attempts.Key{attempts.KeyOf(t.entry)})
	if err != nil {
		return nil, err
	}
	// An attempt that began under another definition says nothing about this one's chain.
	if rec := records[0]; rec.Of(t.entry.DefinitionID) {
		if refused(rec.Outcome) && !t.stopped { // as by the executor of a stopped entry, which this one repeats
			return nil, errRefused
		}
		if rec.Outcome == nil || rec.Outcome.Kind != job.OutcomeSkipped {
			return nil, nil
		}
	}
	d, err := s.byMissedRun(ctx, t, now)
	if err != nil {
		return nil, err
	}
	if t.alone() { // whoever entered a list that has become free, and finds afterwards that it gave way, made others give way to it
		standing, err := s.deps.Hot.Claimed(ctx, t.owner.Partition, claimOf(t, d))
		if err != nil {
			return nil, err
		}
		if standing != nil {
			return s.keep(ctx, t, *standing)
		}
	}
	if d.Fire && t.alone() {
		place, err := s.enter(ctx, t)
		if err != nil {
			return nil, err
		}
		d.Fire, d.GaveWayTo = !place.Full, place.GaveWayTo()
	}
	claims := []hotbucket.Claim{claimOf(t, d)}
	standing, err := s.deps.Hot.Claim(ctx, t.owner, claims)
	if err != nil {
		return nil, err
	}
	return s.keep(ctx, t, standing[0])
}

// byMissedRun returns the decision of the missed-run policy, and the one for an entry that is not late if it does not apply.
func (s *Service) byMissedRun(ctx context.Context, t *task, now time.Time) (job.Decision, error) {
	if t.alone() && !t.missed {
		return t.series.OnTime(t.entry), nil
	}
	// A pause or an update may have taken the instants after the read of the row.
	if known := t.judgedAt.Add(t.series.Def.CatchUpWindow - clock.MaxDifference); known.Before(now) {
		now = known
	}
	d := t.series.Late(t.entry, now)
	if t.alone() && !d.Fire { // what has entered was about to be called, and others may have given way to it since
		entered, err := overlap.Entered(ctx, s.deps.Jobs, t.entry)
		if err != nil || entered {
			return t.series.OnTime(t.entry), err
		}
	}
	return d, nil
}

// keep writes the decision that stands on the entry's row.
func (s *Service) keep(ctx context.Context, t *task, d job.Decision) (*job.Decision, error) {
	if t.alone() && t.lapsed(s.deps.Clock.Now(), s.cfg.OwnerTTL) {
		return nil, errLapsed{} // another owner may have decided, after a loss of the claim
	}
	return &d, s.deps.Pending.Decide(ctx, t.entry.Locator, d)
}

func (s *Service) carryOutLate(ctx context.Context, t *task, d job.Decision, now time.Time) error {
	displaces := d.Waits() && t.series.Def.TakesPlace()
	if displaces {
		if err := s.displace(ctx, t, d.GaveWayTo); err != nil {
			return err
		}
	}
	at := job.Instant(now)
	var events []job.Event
	fires := d.Fire
	if !fires {
		event, err := s.skip(ctx, t, d, at)
		if err != nil {
			return err
		}
		if fires = event == nil; !fires {
			events = append(events, *event)
		} else if err := s.note(ctx, t); err != nil { // before its successor exists, as if it had entered
			return err
		}
	}
	if next, ok := t.series.Successor(t.entry, d, at); ok {
		if err := s.chain(ctx, []job.Entry{next}, now); err != nil {
			return err
		}
		if next.DueAt.Before(now.Add(hotbucket.HintWithin)) {
			t.from.hint(t.owner.Partition) // as in carryOut
		}
	}
	if d.Skipped != nil {
		events = append(events, job.SkippedEvent(t.ours(), t.target(), *d.Skipped, d.Disposition, at))
	}
	if err := s.publishEvents(ctx, events); err != nil {
		return err
	}
	s.count(t, d, fires, now)
	waits := d.Waits() && t.entry.Queues
	if displaces && waits { // none of the others may be running
		before, err := s.turn(ctx, t, s.deps.Clock.Now())
		if err != nil {
			return err
		}
		waits = before != ""
	}
	switch {
	case waits:
		return s.putInLine(ctx, t, d.GaveWayTo)
	case d.Fire:
		return s.sendBare(ctx, t, s.deps.Clock.Now())
	case fires: // it was dispatched before, whatever was decided now
		return s.follow(ctx, t, s.deps.Clock.Now())
	}
	return s.remove(ctx, t)
}

// count counts a decision that was carried out.
func (s *Service) count(t *task, d job.Decision, fires bool, now time.Time) {
	switch {
	case d.Waits() && t.series.Def.TakesPlace():
		s.metrics.overlaps.WithLabelValues("displaces").Inc()
	case d.Waits():
		s.metrics.overlaps.WithLabelValues("waits").Inc()
	case !fires && !d.GaveWayTo.IsZero():
		s.metrics.overlaps.WithLabelValues("skip").Inc()
	case !t.entry.Alone || t.entry.Late(now, t.series.Def.CatchUpWindow):
		s.metrics.late.WithLabelValues(decisionLabel(fires)).Inc()
	}
}

// sendBare publishes a fire that was decided about. Its row may be another than the one that entered, which it repeats. A row that follows
// what was dispatched before, and whose successor exists, is not noted: it is done only after that has ended.
func (s *Service) sendBare(ctx context.Context, t *task, now time.Time) error {
	if err := s.note(ctx, t); err != nil {
		return err
	}
	t.bare = true
	return s.carryOut(ctx, []*task{t}, nil, now)
}

func decisionLabel(fires bool) string {
	if fires {
		return "fire"
	}
	return "skip"
}

// giveUp ends an entry that can no longer be carried out as a permanent failure, on record.
func (s *Service) giveUp(ctx context.Context, t *task, why string) error {
	now := job.Instant(s.deps.Clock.Now())
	o := job.Outcome{Kind: job.OutcomeFailed, Disposition: job.DispositionFired, Error: why, Timeline: job.Timeline{Completed: now}}
	t.series = &occurrence.Series{Def: &job.Definition{}}
	if err := s.publishEvents(ctx, []job.Event{job.AttemptEvent(t.fire(now), t.target(), o, now)}); err != nil {
		return err
	}
	return s.remove(ctx, t)
}
