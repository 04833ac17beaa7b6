package job

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"
)

// Cause is what an owner is told of.
type Cause string

// The causes.
const (
	// CauseDeadLetter: an execution has failed for good. CausePausedBy410: so has one, and its job was paused, because the target answered that it
	// is gone.
	CauseDeadLetter  Cause = "dead_letter"
	CausePausedBy410 Cause = "paused_by_410"
	// CauseSLAMissed: occurrences miss a deadline. CauseRecovered: that is over, or an execution has succeeded after one that had not.
	CauseSLAMissed Cause = "sla_missed"
	CauseRecovered Cause = "recovered"
)

// Causes returns all causes.
func Causes() []Cause {
	return []Cause{CauseDeadLetter, CausePausedBy410, CauseSLAMissed, CauseRecovered}
}

// Notify says whom to tell of what.
type Notify struct {
	On []Cause `json:"on"`
	// Target is called; of it only the kind, the URL and the headers are a client's.
	Target Target `json:"target"`
	// Quiet is the period in which a cause is told once.
	Quiet   time.Duration `json:"quiet_period"`
	Unknown string        `json:"-"` // see Job
}

const (
	// MaxNotify bounds whom a job tells.
	MaxNotify = 5
	// MinQuiet is the shortest quiet period.
	MinQuiet = time.Minute
	// MaxQuiet is the longest one.
	MaxQuiet = 24 * time.Hour
	// DefaultQuiet is the quiet period if a client names none.
	DefaultQuiet = time.Hour
	// MaxHops is how often in a row what was told may cause what is told, when the target of one is a trigger of Minutehand's.
	MaxHops = 10
)

// Tells reports whether one is told of a cause.
func (n *Notify) Tells(c Cause) bool { return slices.Contains(n.On, c) }

// ID names the target among those of a job, without saying what it is.
func (n *Notify) ID() string {
	sum := sha256.Sum256([]byte(n.Target.Kind + " " + n.Target.URL))
	return hex.EncodeToString(sum[:4])
}

// Period returns when the quiet period began to which an instant belongs.
func (n *Notify) Period(at time.Time) time.Time { return at.UTC().Truncate(max(n.Quiet, MinQuiet)) }
