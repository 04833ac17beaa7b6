package wire

import (
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// EventMessage returns an event as a message of the log.
func EventMessage(e *job.Event) dispatch.Message {
	return dispatch.Message{Key: e.Entry.JobID, Value: MarshalEvent(e), Decoded: e}
}

// EventOf returns the event that a message carries; it must not be changed.
func EventOf(m *dispatch.Message) (*job.Event, error) {
	if e, ok := m.Decoded.(*job.Event); ok {
		return e, nil
	}
	e, err := UnmarshalEvent(m.Value)
	return &e, err
}

// TextOf returns how an event of the history is stored.
func TextOf(e jobstore.Recorded) []byte {
	if e.Text != nil {
		return e.Text
	}
	return MarshalEvent(e.Event)
}

// FireMessage returns a fire as a message of the log.
func FireMessage(f *job.Fire) dispatch.Message {
	return dispatch.Message{Key: f.JobID, Value: MarshalFire(f), Decoded: f, Trace: f.Trace}
}

// FireOf returns the fire that a message carries; it must not be changed.
func FireOf(m *dispatch.Message) (*job.Fire, error) {
	if f, ok := m.Decoded.(*job.Fire); ok {
		return f, nil
	}
	f, err := UnmarshalFire(m.Value)
	return &f, err
}
