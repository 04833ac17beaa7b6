package job

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// The prefixes of identifiers; each is followed by a ULID, except in an execution id.
const (
	JobPrefix        = "job_"
	DefinitionPrefix = "def_"
	ExecutionPrefix  = "exe_"
	OperationPrefix  = "op_"
)

// Trigger is why an execution exists.
type Trigger string

// The triggers.
const (
	TriggerSchedule Trigger = "schedule"
	TriggerManual   Trigger = "manual"
	TriggerRedrive  Trigger = "redrive"
	// TriggerBackfill is that of an occurrence that is executed because of an operation, whatever the schedule made of it, TriggerReplay
	// that of an execution that repeats another one.
	TriggerBackfill Trigger = "backfill"
	TriggerReplay   Trigger = "replay"
	// TriggerAfter is that of an execution that follows those of other jobs.
	TriggerAfter Trigger = "after"
	// TriggerChange is that of an entry by which a change of a row becomes an event: see [Change].
	TriggerChange Trigger = "change"
)

// ErrBadID is returned for text that is not an identifier of the expected kind.
var ErrBadID = errors.New("not a valid identifier")

// ExecutionRef is the content of an execution id: which job, why, and which instant or request.
type ExecutionRef struct {
	JobID   string
	Trigger Trigger
	// NominalAt is the occurrence's nominal instant; for a request, the instant at which it was accepted.
	NominalAt time.Time
	// Request is the ULID of the request; empty for trigger schedule.
	Request string
	// FillsIn is, of a backfill, the nominal instant of the occurrence for which the execution stands.
	FillsIn time.Time
}

// ScheduleExecutionID returns the id of the execution of one occurrence. It is a pure function, so every process that sees the
// occurrence computes the same id.
func ScheduleExecutionID(jobID string, nominalAt time.Time) string {
	return fmt.Sprintf("%s%s-s%013d", ExecutionPrefix, strings.TrimPrefix(jobID, JobPrefix), nominalAt.UnixMilli())
}

// ManualExecutionID returns the id of the execution of one trigger request; the ULID's time is the instant of the request.
func ManualExecutionID(jobID, requestULID string) string {
	return ExecutionPrefix + strings.TrimPrefix(jobID, JobPrefix) + "-m" + requestULID
}

// RedriveExecutionID returns the id of the execution by which a request replaces one that was given up. The ULID's time is that of the
// request's; the rest is a hash of both.
func RedriveExecutionID(jobID, requestULID, source string) string {
	return ExecutionPrefix + strings.TrimPrefix(jobID, JobPrefix) + "-r" + hashed(requestULID, source)
}

// BackfillExecutionID returns the id of the execution by which an operation fills an occurrence in. The ULID's time is that of the
// operation's; then follow the nominal instant, by which the executions of an operation sort, and the end of the operation's ULID.
func BackfillExecutionID(jobID, operationID string, nominalAt time.Time) string {
	of, _ := parseULID(strings.TrimPrefix(operationID, OperationPrefix)) // the zero ULID for text that is none
	ms := ulid.ULID{}
	_ = ms.SetTime(uint64(nominalAt.UnixMilli())) // before the year 10889
	id := of
	copy(id[6:12], ms[:6])
	return ExecutionPrefix + strings.TrimPrefix(jobID, JobPrefix) + "-b" + id.String()
}

// ReplayExecutionID returns the id of the execution by which a request, or an operation, repeats another. The ULID's time is that of the
// request's; the rest is a hash of both.
func ReplayExecutionID(jobID, requestULID, source string) string {
	return ExecutionPrefix + strings.TrimPrefix(jobID, JobPrefix) + "-p" + hashed(requestULID, source)
}

// hashed returns a ULID of the time of a request's. The rest is a hash of it and of the execution that is repeated.
func hashed(requestULID, source string) string {
	of, _ := parseULID(requestULID) // the zero ULID for text that is none
	sum := sha256.Sum256([]byte(requestULID + source))
	copy(of[6:], sum[:])
	return of.String()
}

// AfterExecutionID returns the id of the execution by which a job follows others: what it follows, an execution or an occurrence, at the instant
// at which it was found to have ended. That is the ULID's time; the rest is a hash of both.
func AfterExecutionID(jobID, follows string, at time.Time) string {
	var id ulid.ULID
	_ = id.SetTime(uint64(at.UnixMilli())) // before the year 10889
	sum := sha256.Sum256([]byte(jobID + follows))
	copy(id[6:], sum[:])
	return ExecutionPrefix + strings.TrimPrefix(jobID, JobPrefix) + "-a" + id.String()
}

// FirstDefinition reports whether a definition is the one that its job began with: the ids of both are of the millisecond in which the job
// was accepted, and those of its later definitions are of later ones.
func FirstDefinition(jobID, definitionID string) bool {
	began, ok := parseULID(strings.TrimPrefix(jobID, JobPrefix))
	defined, isULID := parseULID(strings.TrimPrefix(definitionID, DefinitionPrefix))
	return ok && isULID && began.Time() == defined.Time()
}

// DefinedAt returns when a definition was made, by the clock of whoever made it; zero for text that is not a definition's id.
func DefinedAt(definitionID string) time.Time {
	id, ok := parseULID(strings.TrimPrefix(definitionID, DefinitionPrefix))
	if !ok {
		return time.Time{}
	}
	return time.UnixMilli(int64(id.Time())).UTC()
}

// triggers are those of the executions that somebody asked for, by the letter in their ids.
var triggers = map[byte]Trigger{
	'm': TriggerManual, 'r': TriggerRedrive, 'b': TriggerBackfill, 'p': TriggerReplay, 'a': TriggerAfter,
	'c': TriggerChange,
}

// ParseExecutionID parses an execution id into its parts.
func ParseExecutionID(id string) (ExecutionRef, error) {
	rest, ok := strings.CutPrefix(id, ExecutionPrefix)
	job, tail, found := strings.Cut(rest, "-")
	if !ok || !found || !isULID(job) || len(tail) < 2 {
		return ExecutionRef{}, ErrBadID
	}
	ref := ExecutionRef{JobID: JobPrefix + job}
	switch tail[0] {
	case 's':
		ms, err := strconv.ParseUint(tail[1:], 10, 53)
		if err != nil || len(tail) != 14 {
			return ExecutionRef{}, ErrBadID
		}
		ref.Trigger, ref.NominalAt = TriggerSchedule, time.UnixMilli(int64(ms)).UTC()
	case 'm', 'r', 'b', 'p', 'a', 'c':
		request, ok := parseULID(tail[1:])
		if !ok {
			return ExecutionRef{}, ErrBadID
		}
		ref.Trigger, ref.Request, ref.NominalAt = triggers[tail[0]], tail[1:], time.UnixMilli(int64(request.Time())).UTC()
		if ref.Trigger == TriggerBackfill {
			of := request
			copy(of[:6], request[6:12])
			ref.FillsIn = time.UnixMilli(int64(of.Time())).UTC()
		}
	default:
		return ExecutionRef{}, ErrBadID
	}
	return ref, nil
}

// ValidID reports whether id is prefix followed by a ULID.
func ValidID(id, prefix string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && isULID(rest)
}

func isULID(s string) bool {
	_, ok := parseULID(s)
	return ok
}

// parseULID parses a ULID in its one canonical form. The library accepts lower case too, but identifiers are compared as text.
func parseULID(s string) (ulid.ULID, bool) {
	u, err := ulid.ParseStrict(s)
	if err != nil {
		return u, false
	}
	var canonical [ulid.EncodedSize]byte
	_ = u.MarshalTextTo(canonical[:]) // it fails only for another size
	return u, string(canonical[:]) == s
}

// ULIDTime returns the instant in the first 48 bits of a ULID; for text that is not a ULID, that of the zero ULID.
func ULIDTime(text string) time.Time {
	u, _ := parseULID(text)
	return time.UnixMilli(int64(u.Time())).UTC()
}

// NextDefinitionID returns candidate if it is of a later millisecond than previous. Otherwise it returns an id of the millisecond after
// previous, with the random part of candidate. Definition ids must grow with every change, even when two changes fall into one
// millisecond or a clock steps back. And two requests that change the same definition at once must not choose the same id, because only
// one of them prevails.
func NextDefinitionID(previous, candidate string) string {
	before, ok := parseULID(strings.TrimPrefix(previous, DefinitionPrefix))
	next, isULID := parseULID(strings.TrimPrefix(candidate, DefinitionPrefix))
	if candidate > previous && (!ok || isULID && next.Time() > before.Time()) {
		return candidate
	}
	if !ok || !isULID || next.SetTime(before.Time()+1) != nil {
		panic("an id of a definition is not a ULID: " + previous + ", " + candidate)
	}
	return DefinitionPrefix + next.String()
}
