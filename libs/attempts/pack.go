package attempts

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/job"
)

// DigestBytes is how long a digest is.
const DigestBytes = 16

// Digest identifies an attempt among packed outcomes. Two attempts that hide one another are not expected in 2^64.
func Digest(k Key) [DigestBytes]byte {
	sum := sha256.Sum256([]byte(k.ExecutionID + ":" + strconv.Itoa(k.Attempt)))
	return [DigestBytes]byte(sum[:])
}

var (
	kinds        = []job.OutcomeKind{"", job.OutcomeSucceeded, job.OutcomeFailed, job.OutcomeTimedOut, job.OutcomeWorkerLost, job.OutcomeCancelled, job.OutcomeSkipped}
	dispositions = []job.Disposition{"", job.DispositionFired, job.DispositionSkippedMissed, job.DispositionSkippedPaused, job.DispositionCancelled, job.DispositionSkippedOverlap}
)

// The flags of a packed outcome.
const (
	retryable = 1 << iota
	pausesJob
	// byULID: the definition's id is a ULID, stored in 16 bytes.
	byULID
)

// forgotten replaces the error of an outcome that is kept packed.
const forgotten = "what became of the call in detail is not kept any more"

// Pack encodes what others need from an outcome in at most 64 bytes: its kind and disposition, token and definition, when it ended,
// and what a retry depends on.
func Pack(t job.Token, o *job.Outcome) []byte {
	flags, id := byte(0), []byte(o.DefinitionID)
	if o.Retryable {
		flags |= retryable
	}
	if o.PauseJob {
		flags |= pausesJob
	}
	if u, err := ulid.ParseStrict(strings.TrimPrefix(o.DefinitionID, job.DefinitionPrefix)); err == nil && job.DefinitionPrefix+u.String() == o.DefinitionID {
		flags, id = flags|byULID, u[:]
	}
	b := []byte{byte(max(slices.Index(kinds, o.Kind), 0)<<4 | max(slices.Index(dispositions, o.Disposition), 0)), flags}
	if flags&byULID == 0 {
		b = binary.AppendUvarint(b, uint64(len(id)))
	}
	b = append(b, id...)
	for _, n := range []int64{
		t.Counter, t.Start, o.Fence.Epoch, o.Fence.Counter, o.Fence.Start, int64(o.StatusCode), o.RetryAfter.Milliseconds(), milliseconds(o.Timeline.Completed),
	} {
		b = binary.AppendVarint(b, n)
	}
	if o.Disposition == job.DispositionSkippedOverlap {
		b = binary.AppendVarint(b, milliseconds(o.GaveWayTo))
	}
	return b
}

var errPacked = errors.New("a packed outcome is cut short")

// Unpack returns what Pack kept of an outcome, and its token.
func Unpack(text string) (o job.Outcome, t job.Token, err error) {
	b := []byte(text)
	if len(b) < 2 || int(b[0]>>4) >= len(kinds) || int(b[0]&15) >= len(dispositions) {
		return o, t, errPacked
	}
	o.Kind, o.Disposition = kinds[b[0]>>4], dispositions[b[0]&15]
	o.Retryable, o.PauseJob = b[1]&retryable != 0, b[1]&pausesJob != 0
	size, isULID := uint64(len(ulid.ULID{})), b[1]&byULID != 0
	b = b[2:]
	if !isULID {
		n, read := binary.Uvarint(b)
		if read <= 0 {
			return o, t, errPacked
		}
		size, b = n, b[read:]
	}
	if uint64(len(b)) < size {
		return o, t, errPacked
	}
	o.DefinitionID = string(b[:size])
	if isULID {
		o.DefinitionID = job.DefinitionPrefix + ulid.ULID(b[:size]).String()
	}
	b = b[size:]
	var status, retryAfter, completed, gaveWayTo int64
	fields := []*int64{&t.Counter, &t.Start, &o.Fence.Epoch, &o.Fence.Counter, &o.Fence.Start, &status, &retryAfter, &completed, &gaveWayTo}
	if o.Disposition != job.DispositionSkippedOverlap {
		fields = fields[:len(fields)-1]
	}
	for _, n := range fields {
		v, read := binary.Varint(b)
		if read <= 0 {
			return o, t, errPacked
		}
		*n, b = v, b[read:]
	}
	o.StatusCode, o.RetryAfter = int(status), time.Duration(retryAfter)*time.Millisecond
	if completed != 0 {
		o.Timeline.Completed = time.UnixMilli(completed).UTC()
	}
	if gaveWayTo != 0 {
		o.GaveWayTo = time.UnixMilli(gaveWayTo).UTC()
	}
	if o.Kind != job.OutcomeSucceeded {
		o.Error = forgotten
	}
	return o, t, nil
}

func milliseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
