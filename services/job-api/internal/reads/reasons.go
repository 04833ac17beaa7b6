package reads

import (
	"fmt"

	"github.com/minutehand/minutehand/libs/job"
)

// reasons says why an occurrence is in a state, where nothing more is known; skips, why it was not called.
var (
	reasons = map[string]string{
		statePlanned: "It is not due yet.",
		statePaused:  "The job is paused. What becomes of this instant is decided when the job is resumed.",
		"pending":    "It is due, and was not called yet.",
		"dispatched": "It is on its way to its target.",
		"running":    "Its target is being called.",
		"retrying":   "It was called in vain, and waits for its next attempt.",
		"succeeded":  "It was called, and has succeeded.",
		"cancelled":  "It was called, and cancelled while it ran or before its next attempt.",
		stateUnknown: "Nothing is on record of it: no call, no skip, and no entry that waits.",
	}
	skips = map[job.Disposition]string{
		job.DispositionSkippedMissed:  "Skipped: it could not be called within the catch_up_window, and the missed_run_policy lets it go.",
		job.DispositionSkippedPaused:  "Skipped: the job was paused.",
		job.DispositionSkippedOverlap: "Skipped: another execution was still in progress, and the overlap_policy lets it go.",
		job.DispositionCancelled:      "Not called: the job or this execution was cancelled before.",
	}
	deadReasons = map[string]string{
		"permanent":    "the failure was of a kind that another attempt does not mend",
		"max_attempts": "no attempt was left",
		"window":       "the next attempt would have come after the retry window",
	}
)

// ofAttempts says how an execution came to where it is; "" if its state says everything.
func ofAttempts(x *Execution, status job.Status) string {
	n := len(x.Attempts)
	switch {
	case n == 0:
		return ""
	case x.State == "succeeded":
		return fmt.Sprintf("It was called, and succeeded at %s.", attemptOf(n))
	case x.State == "retrying" && x.Cancelling:
		return fmt.Sprintf("%s ended with %s, and then it was cancelled: no attempt follows.", capital(attemptOf(n)), x.Attempts[n-1].Outcome)
	case x.State == "retrying" && status == job.StatusCancelled:
		return fmt.Sprintf("%s ended with %s. The job was cancelled: no attempt follows.", capital(attemptOf(n)), x.Attempts[n-1].Outcome)
	case x.State == "retrying":
		return fmt.Sprintf("%s ended with %s; the next one follows.", capital(attemptOf(n)), x.Attempts[n-1].Outcome)
	case x.State == "dead":
		why := deadReasons[x.gaveUp]
		if why == "" {
			why = "it was given up"
		}
		return fmt.Sprintf("It was given up after %s, which ended with %s: %s.", attemptOf(n), x.Attempts[n-1].Outcome, why)
	}
	return ""
}

func attemptOf(n int) string {
	if n == 1 {
		return "the first attempt"
	}
	return fmt.Sprintf("attempt %d", n)
}

func capital(s string) string { return string(s[0]-'a'+'A') + s[1:] }

// deferred says of an occurrence that its target had no room when its fire came, inLine that it waits for others, ending that its entry is done and its history behind.
const (
	deferred = "Its target has no room; it is tried again."
	inLine   = "It is called once the executions before it have ended, as the overlap_policy asks."
	ending   = "It has ended, and how comes on record in a moment."
	// stopping says it of one that was cancelled, and has not ended.
	stopping = "It was cancelled, and what ends it is on its way."
)
