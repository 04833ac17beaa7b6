// Package wire converts the vocabulary to the Protobuf messages of schemas/proto and back. What it writes is stored on Kafka, in
// the embedded log and in the hot tier, byte for byte.
//
// It promises that decoding what it encoded returns an equal value, and that foreign bytes cause an error, never a panic.
package wire

import (
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	pb "github.com/minutehand/minutehand/schemas/proto/minutehand/v1"
)

// MarshalEntry encodes an entry.
func MarshalEntry(e *job.Entry) []byte { return marshal(entryToPB(e)) }

// UnmarshalEntry decodes an entry.
func UnmarshalEntry(b []byte) (job.Entry, error) {
	var m pb.Entry
	if err := m.UnmarshalVT(b); err != nil {
		return job.Entry{}, fmt.Errorf("wire: entry: %w", err)
	}
	return entryFromPB(&m), nil
}

// MarshalDecision encodes a decision.
func MarshalDecision(d job.Decision) []byte {
	return marshal(&pb.Decision{
		Fire: d.Fire, Skipped: rangeToPB(d.Skipped), NextMs: ms(d.Next), NextOrdinal: int64(d.NextOrdinal),
		NextBackfillFired: int64(d.NextBackfillFired), Disposition: string(d.Disposition), GaveWayToMs: ms(d.GaveWayTo),
	})
}

// UnmarshalDecision decodes a decision.
func UnmarshalDecision(b []byte) (job.Decision, error) {
	var m pb.Decision
	if err := m.UnmarshalVT(b); err != nil {
		return job.Decision{}, fmt.Errorf("wire: decision: %w", err)
	}
	return job.Decision{
		Fire: m.Fire, Skipped: rangeFromPB(m.Skipped), Next: at(m.NextMs), NextOrdinal: int(m.NextOrdinal),
		NextBackfillFired: int(m.NextBackfillFired), Disposition: job.Disposition(m.Disposition), GaveWayTo: at(m.GaveWayToMs),
	}, nil
}

// MarshalFire encodes a fire.
func MarshalFire(f *job.Fire) []byte {
	return marshal(&pb.Fire{
		Entry: entryToPB(&f.Entry), TenantId: f.Tenant.String(), Target: targetToPB(f.Target), Retry: retryToPB(f.Retry),
		Incarnation: f.Incarnation, Epoch: f.Epoch, TakenAtMs: ms(f.TakenAt), PublishedAtMs: ms(f.PublishedAt),
		Fresh: f.Fresh, StartWithinMs: f.Deadlines.StartWithin.Milliseconds(), FinishWithinMs: f.Deadlines.FinishWithin.Milliseconds(),
	})
}

// UnmarshalFire decodes a fire.
func UnmarshalFire(b []byte) (job.Fire, error) {
	var m pb.Fire
	if err := m.UnmarshalVT(b); err != nil {
		return job.Fire{}, fmt.Errorf("wire: fire: %w", err)
	}
	f := job.Fire{
		Entry: entryFromPB(m.Entry), Target: targetFromPB(m.Target), Retry: retryFromPB(m.Retry),
		Incarnation: m.Incarnation, Epoch: m.Epoch, TakenAt: at(m.TakenAtMs), PublishedAt: at(m.PublishedAtMs),
		Fresh: m.Fresh, Deadlines: job.Deadlines{StartWithin: dur(m.StartWithinMs), FinishWithin: dur(m.FinishWithinMs)},
	}
	f.Tenant = tenantOf(m.Entry, m.TenantId)
	return f, nil
}

// MarshalEvent encodes an event.
func MarshalEvent(e *job.Event) []byte { return marshal(eventToPB(e)) }

// UnmarshalEvent decodes an event.
func UnmarshalEvent(b []byte) (job.Event, error) {
	var m pb.Event
	if err := m.UnmarshalVT(b); err != nil {
		return job.Event{}, fmt.Errorf("wire: event: %w", err)
	}
	return eventFromPB(&m), nil
}

// MarshalOutcome encodes an outcome.
func MarshalOutcome(o *job.Outcome) []byte { return marshal(outcomeToPB(o)) }

// UnmarshalOutcome decodes an outcome.
func UnmarshalOutcome(b []byte) (job.Outcome, error) {
	var m pb.Outcome
	if err := m.UnmarshalVT(b); err != nil {
		return job.Outcome{}, fmt.Errorf("wire: outcome: %w", err)
	}
	return outcomeFromPB(&m), nil
}

// MarshalDeadLetter encodes a dead letter.
func MarshalDeadLetter(d *job.DeadLetter) []byte {
	return marshal(&pb.DeadLetter{Event: eventToPB(&d.Event), Reason: d.Reason, AtMs: ms(d.At)})
}

// UnmarshalDeadLetter decodes a dead letter.
func UnmarshalDeadLetter(b []byte) (job.DeadLetter, error) {
	var m pb.DeadLetter
	if err := m.UnmarshalVT(b); err != nil {
		return job.DeadLetter{}, fmt.Errorf("wire: dead letter: %w", err)
	}
	return job.DeadLetter{Event: eventFromPB(m.Event), Reason: m.Reason, At: at(m.AtMs)}, nil
}

// marshal cannot fail for these messages: they have no required fields, and every string was checked to be UTF-8 at the edge. A
// panic here would mean a broken build, not bad input.
func marshal(m interface{ MarshalVT() ([]byte, error) }) []byte {
	b, err := m.MarshalVT()
	if err != nil {
		panic("wire: " + err.Error())
	}
	return b
}

func ms(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func at(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func dur(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
