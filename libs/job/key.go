package job

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// The placeholders of an idempotency key's template.
const (
	placeholderRunAt     = "{run_at}"
	placeholderExecution = "{execution_id}"
	placeholderJob       = "{job_id}"
)

// MaxKeyTemplate is the length of a template of an idempotency key at most, in bytes.
const MaxKeyTemplate = 200

// IdempotencyKey returns the key that all calls of an entry's execution carry: its id, or what the target's template makes of it. {run_at}
// stands for the nominal instant in UTC, as RFC 3339 with as many decimals as it needs, {execution_id} and {job_id} for the ids. What
// repeats an occurrence, or fills it in, has that one's instant ([Entry.Occurrence]), so that a target knows it again.
func (t *Target) IdempotencyKey(e *Entry) string {
	if t.KeyTemplate == "" {
		return e.ExecutionID
	}
	return strings.NewReplacer(
		placeholderRunAt, e.Occurrence().UTC().Format(time.RFC3339Nano), placeholderExecution, e.ExecutionID, placeholderJob, e.JobID,
	).Replace(t.KeyTemplate)
}

var placeholders = regexp.MustCompile(`\{[^{}]*\}`)

// CheckKeyTemplate returns what is wrong with a template of the idempotency keys of a schedule's calls: each execution must have a key of its
// own, or a target that knows the key takes the second one for the first.
func CheckKeyTemplate(template string, kind ScheduleType) error {
	own := kind == ScheduleOneShot
	rest := placeholders.ReplaceAllStringFunc(template, func(p string) string {
		switch p {
		case placeholderRunAt, placeholderExecution:
			own = own || p == placeholderExecution || kind != ScheduleAfter // several executions may follow one occurrence
			return ""
		case placeholderJob:
			return ""
		}
		return p
	})
	switch {
	case len(template) > MaxKeyTemplate:
		return fmt.Errorf("may have at most %d characters", MaxKeyTemplate)
	case strings.ContainsFunc(template, func(c rune) bool { return c < '!' || c > '~' }):
		return errors.New("may have visible ASCII characters only, no spaces")
	case strings.ContainsAny(rest, "{}"):
		return errors.New("knows {run_at}, {execution_id} and {job_id}; anything else in braces is a mistake")
	case !own && kind == ScheduleAfter:
		return errors.New("needs {execution_id}: several executions may follow one occurrence, and a target would take each for the first one")
	case !own:
		return errors.New("needs {run_at} or {execution_id}: otherwise a target takes every occurrence for the first one")
	}
	return nil
}
