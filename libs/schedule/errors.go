package schedule

import "errors"

// CodeInvalid is the code of an Error: the schedule is wrong as it stands.
const CodeInvalid = "invalid-schedule"

// Error is one fault of a schedule.
type Error struct {
	// Field is the JSON member at fault, such as cron_expr or dst/gap.
	Field string
	// Code is CodeInvalid.
	Code string
	// Message says in one sentence what to do. It never repeats what was submitted, which may be hostile or secret.
	Message string
}

// Error returns the member at fault and what to do about it.
func (e *Error) Error() string { return e.Field + ": " + e.Message }

// faults collects everything that is wrong, so that a user learns it all at once.
type faults []error

func (f *faults) add(field, message string) {
	*f = append(*f, &Error{Field: field, Code: CodeInvalid, Message: message})
}

// err returns nil, the only fault, or all of them joined.
func (f faults) err() error {
	if len(f) == 1 {
		return f[0]
	}
	return errors.Join(f...)
}
