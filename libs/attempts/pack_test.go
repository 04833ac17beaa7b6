package attempts

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// largestListpackValue is Redis' own bound (hash-max-listpack-value): above it a hash takes at least twice the memory.
const largestListpackValue = 64

func TestPackedOutcomeSaysWhatOthersGoBy(t *testing.T) {
	at := time.Date(2039, 1, 1, 12, 0, 0, 123e6, time.UTC)
	token := job.Token{Counter: 3, Start: 1 << 40}
	for name, o := range map[string]job.Outcome{
		"succeeded": {
			Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired, StatusCode: 204, DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ",
			Fence:    job.Fence{Epoch: at.UnixMicro(), Counter: 1 << 34, Start: 1 << 40},
			Timeline: job.Timeline{Completed: at},
		},
		"failed for now": {Kind: job.OutcomeFailed, Retryable: true, Disposition: job.DispositionFired, StatusCode: 503, RetryAfter: time.Hour, Error: forgotten},
		"gone":           {Kind: job.OutcomeFailed, PauseJob: true, Disposition: job.DispositionFired, StatusCode: 410, Error: forgotten, DefinitionID: "def_2"},
		"gave way":       {Kind: job.OutcomeSkipped, Disposition: job.DispositionSkippedOverlap, Error: forgotten, Timeline: job.Timeline{Completed: at}, GaveWayTo: at},
		"refused":        {Kind: job.OutcomeSkipped, Disposition: job.DispositionSkippedPaused, Error: forgotten, Timeline: job.Timeline{Completed: at}},
	} {
		text := Pack(token, &o)
		got, gotToken, err := Unpack(string(text))
		if err != nil || gotToken != token || !reflect.DeepEqual(got, o) {
			t.Errorf("%s: unpacked %+v, %+v, want %+v (%v)", name, got, gotToken, o, err)
		}
		if len(text) > largestListpackValue {
			t.Errorf("%s takes %d bytes", name, len(text))
		}
		for n := range text {
			if _, _, err := Unpack(string(text[:n])); err == nil {
				t.Errorf("%s: its first %d bytes pass for an outcome", name, n)
			}
		}
	}
}

func TestForeignBytesAreNoOutcome(t *testing.T) {
	for _, text := range []string{"", "\x70\x00", "\x07\x00", "\x11\x00" + strings.Repeat("\xff", 11), "\x11\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		if o, _, err := Unpack(text); err == nil {
			t.Errorf("%q passes for %+v", text, o)
		}
	}
	o := job.Outcome{Kind: job.OutcomeSucceeded, RetryAfter: math.MaxInt64 / time.Millisecond * time.Millisecond, Timeline: job.Timeline{Completed: time.UnixMilli(-1).UTC()}}
	if got, _, err := Unpack(string(Pack(job.Token{Counter: -1}, &o))); err != nil || !reflect.DeepEqual(got, o) {
		t.Errorf("unpacked %+v, want %+v (%v)", got, o, err)
	}
}
