// Package diagnosis is what minutehand doctor says: findings about servers and processes, each with what to do about it. Every adapter
// examines its own server, because it knows which settings its promises rest on.
package diagnosis

import (
	"fmt"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
)

// Level says how bad a finding is.
type Level string

const (
	// Fine means: it is as it should be.
	Fine Level = "fine"
	// Notice means: no promise is broken, and somebody should know.
	Notice Level = "notice"
	// Wrong means: a promise is broken, or will be when something fails.
	Wrong Level = "wrong"
)

// Finding is one thing that was looked at.
type Finding struct {
	// Subject is the server or process, such as "redis 10.0.0.7:6379".
	Subject string `json:"subject"`
	Level   Level  `json:"level"`
	// Text says what is the case, and Do what to do about it, empty where nothing has to be.
	Text string `json:"text"`
	Do   string `json:"do,omitempty"`
}

// Report gathers findings. It is safe for concurrent use.
type Report struct {
	mu   sync.Mutex
	list []Finding
}

func (r *Report) add(level Level, subject, do, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, Finding{Subject: subject, Level: level, Text: fmt.Sprintf(format, args...), Do: do})
}

// Add adds findings.
func (r *Report) Add(findings ...Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, findings...)
}

// Fine adds what is as it should be.
func (r *Report) Fine(subject, format string, args ...any) { r.add(Fine, subject, "", format, args...) }

// Notice adds what somebody should know.
func (r *Report) Notice(subject, do, format string, args ...any) {
	r.add(Notice, subject, do, format, args...)
}

// Wrong adds what breaks a promise.
func (r *Report) Wrong(subject, do, format string, args ...any) {
	r.add(Wrong, subject, do, format, args...)
}

// Findings returns what was found, in the order in which it was.
func (r *Report) Findings() []Finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Finding(nil), r.list...)
}

// clockNotice is how much a clock may differ before it is told; machines that ask a time server are much closer.
const clockNotice = clock.MaxDifference / 4

// Clock adds what the clock of another machine says, which was read between two instants of this one. exact is how finely it was told.
func (r *Report) Clock(subject string, theirs, before, after time.Time, exact time.Duration) {
	middle := before.Add(after.Sub(before) / 2)
	off, doubt := theirs.Sub(middle), after.Sub(before)/2+exact
	const do = "synchronise the clocks of all machines with a time server (chrony, systemd-timesyncd, the cloud's own)"
	switch certain := off.Abs() - doubt; {
	case certain > clock.MaxDifference:
		r.Wrong(subject, do, "its clock differs from this machine's by %s, and at most %s are borne", round(off), clock.MaxDifference)
	case certain > clockNotice:
		r.Notice(subject, do, "its clock differs from this machine's by %s", round(off))
	default:
		r.Fine(subject, "its clock agrees with this machine's within %s", round(max(off.Abs(), doubt)))
	}
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
