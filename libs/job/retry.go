package job

import (
	"hash/fnv"
	"math"
	"strconv"
	"time"
)

// Backoff is how the delays between attempts grow.
type Backoff string

// The backoffs.
const (
	BackoffExponential Backoff = "exponential"
	BackoffLinear      Backoff = "linear"
	BackoffFixed       Backoff = "fixed"
	BackoffList        Backoff = "list"
)

// RetryPolicy says how often and when a failed attempt is repeated.
type RetryPolicy struct {
	Backoff Backoff `json:"backoff"`
	// MaxAttempts counts the first attempt.
	MaxAttempts int           `json:"max_attempts"`
	BaseDelay   time.Duration `json:"base_delay"`
	MaxDelay    time.Duration `json:"max_delay"`
	// Jitter is the fraction j of the delay by which it may vary, from 0 to 1.
	Jitter float64 `json:"jitter"`
	// Window bounds the whole execution: no attempt begins later than this after the first was due.
	Window time.Duration `json:"window"`
	// Delays are the delays of BackoffList; the last one repeats.
	Delays  []time.Duration `json:"delays,omitempty"`
	Unknown string          `json:"-"` // see Job
}

// DefaultRetryPolicy returns the policy of a job that states none.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{
		Backoff: BackoffExponential, MaxAttempts: 5, BaseDelay: 30 * time.Second, MaxDelay: time.Hour,
		Jitter: 0.25, Window: 24 * time.Hour,
	}
}

// Delay returns the pause before attempt k+1, k from 1: exponential min(max, base·2^(k-1)), linear base·k (at most max), fixed
// base, or the k-th of the list, times 1−j+2j·u with u in [0,1) drawn from the execution id and k. So every process that settles
// the same failure computes the same delay.
func (p RetryPolicy) Delay(executionID string, k int) time.Duration {
	base := float64(p.BaseDelay)
	var d float64
	switch p.Backoff {
	case BackoffLinear:
		d = base * float64(k)
	case BackoffFixed:
		d = base
	case BackoffList:
		if len(p.Delays) > 0 {
			d = float64(p.Delays[min(k, len(p.Delays))-1])
		}
	default:
		d = base * math.Pow(2, float64(k-1))
	}
	if p.Backoff != BackoffList {
		d = math.Min(d, float64(p.MaxDelay))
	}
	d *= 1 - p.Jitter + 2*p.Jitter*Unit(executionID, k)
	if d >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(d).Truncate(time.Millisecond)
}

// Unit returns a number in [0,1) that depends only on the execution and the attempt.
func Unit(executionID string, k int) float64 {
	h := fnv.New64a()
	h.Write([]byte(executionID))
	h.Write([]byte("#" + strconv.Itoa(k)))
	x := h.Sum64()
	// FNV spreads its last bytes badly over the high bits; one multiply-xorshift round (Murmur3's finaliser) corrects that.
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x>>11) / (1 << 53)
}
