package edge

import (
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/schedule"
)

// ErrNotHeld means that a change is stored, and does not hold yet.
var ErrNotHeld = errors.New("a server of the hot tier failed over, so the change holds in some seconds")

// Problems turns errors into problem documents, here and nowhere else. It logs once when requests can no longer be
// answered, and once when they can again. It must not be copied.
type Problems struct {
	logger *slog.Logger
	// away is set if the last request that needed a server got no answer from it.
	away atomic.Bool
}

// NewProblems returns a Problems that logs to logger.
func NewProblems(logger *slog.Logger) *Problems { return &Problems{logger: logger} }

// answered notes that a request which needs servers was answered.
func (ps *Problems) answered() {
	if ps.away.CompareAndSwap(true, false) {
		ps.logger.Info("requests are answered again")
	}
}

// Of returns the problem that answers a request which failed with err. An unknown error means that a server is unavailable.
func (ps *Problems) Of(err error, r *Request) *problem.Problem {
	var p *problem.Problem
	var fault *schedule.Error
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &fault):
		return Invalid(ScheduleFaults(err)) // whether H can ever match may depend on the job's id
	case errors.Is(err, jobstore.ErrNotFound):
		return NotFound()
	case errors.Is(err, jobstore.ErrConflict):
		return problem.New(http.StatusConflict, "conflict", "Other changes came between; read the job and try again.")
	}
	switch {
	case errors.Is(err, ErrNotHeld):
		p := problem.Unavailable(advice(r))
		p.RetryAfter = attempts.ReplacedFor
		return p
	case errors.Is(err, jobchange.ErrUntold):
		return problem.Unavailable("Nothing was changed: the events of earlier changes are still to be published. Try again.")
	case r.Context().Err() != nil: // the client has gone
		return problem.Unavailable(advice(r))
	}
	if !ps.away.Swap(true) {
		ps.logger.Error("requests cannot be answered", "error", err)
	}
	return problem.Unavailable(advice(r))
}

// advice says what a request whose answer was cut short may have done, and how to find out.
func advice(r *Request) string {
	key, err := r.IdempotencyKey()
	switch {
	case r.Method == http.MethodGet:
		return "Nothing was changed; ask again."
	case strings.HasSuffix(r.URL.Path, "/schedules/preview"):
		return "Try again."
	case err == nil && key != "":
		return "It may have been carried out or not: try again with the same Idempotency-Key, and it is carried out once."
	case r.Method == http.MethodPut || r.Method == http.MethodPatch:
		return "The update may have been carried out or not: read the job, and compare its ETag before you try again."
	case r.Method == http.MethodDelete || repeatable(r.URL.Path):
		return "It may have been carried out or not: try again, twice is the same as once."
	}
	return "It may have been carried out or not: look before you try again, and send an Idempotency-Key, with which a request may be repeated."
}

// repeatable reports whether a POST to a path may be repeated without an Idempotency-Key.
func repeatable(path string) bool {
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case "pause", "resume", "cancel":
		return true
	}
	return false
}

// NotFound returns the answer where there is nothing under an identifier.
func NotFound() *problem.Problem {
	return problem.New(http.StatusNotFound, "not-found", "There is nothing under this identifier.")
}

// BadCursor returns the answer to a cursor that no page has returned.
func BadCursor() *problem.Problem {
	return BadParameter("The cursor is not one of a page before.",
		problem.Fault{Pointer: "/query/cursor", Code: "cursor", Message: "Use the next_cursor of the page before."})
}

// BadParameter returns the answer to a parameter whose form is right and whose value cannot be.
func BadParameter(detail string, fault problem.Fault) *problem.Problem {
	return problem.New(http.StatusBadRequest, "invalid-parameter", detail, fault)
}

// Invalid returns the answer to a body with faults; nil if there are none.
func Invalid(faults []problem.Fault) *problem.Problem {
	if len(faults) == 0 {
		return nil
	}
	return problem.New(http.StatusUnprocessableEntity, "invalid-request",
		"The body was understood, but "+strconv.Itoa(len(faults))+" of its members must be mended.", faults...)
}

// TooLarge returns the answer to a body of more bytes than the limit.
func TooLarge(limit int64) *problem.Problem {
	return problem.New(http.StatusRequestEntityTooLarge, "too-large",
		"The body is larger than "+strconv.FormatInt(limit, 10)+" bytes.")
}

// OutOfRange returns the answer to a body with a number or a text that the schema allows and that this build cannot hold.
func OutOfRange() *problem.Problem {
	return Invalid([]problem.Fault{{Pointer: "", Code: "out-of-range", Message: "Use a smaller value."}})
}

// ScheduleFaults returns the faults in an error of the schedule engine; none if it is nil.
func ScheduleFaults(err error) []problem.Fault {
	if err == nil {
		return nil
	}
	var faults []problem.Fault
	for _, e := range flatten(err) {
		faults = append(faults, problem.Fault{Pointer: "/" + e.Field, Code: e.Code, Message: e.Message})
	}
	return faults
}

// flatten lists the schedule engine's faults in an error that joins or wraps them.
func flatten(err error) []*schedule.Error {
	switch e := err.(type) { //nolint:errorlint // it walks the whole tree
	case *schedule.Error:
		return []*schedule.Error{e}
	case interface{ Unwrap() []error }:
		var all []*schedule.Error
		for _, e := range e.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	case interface{ Unwrap() error }:
		return flatten(e.Unwrap())
	}
	return []*schedule.Error{{Field: "type", Code: schedule.CodeInvalid, Message: "The schedule cannot be used."}}
}
