package diagnosis_test

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/diagnosis"
)

func TestClockThatIsFurtherOffThanTheAnswerTookIsTold(t *testing.T) {
	at := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		off, took, exact time.Duration
		want             diagnosis.Level
	}{
		{0, time.Millisecond, 0, diagnosis.Fine},
		{400 * time.Millisecond, time.Millisecond, 0, diagnosis.Fine},
		{-600 * time.Millisecond, time.Millisecond, 0, diagnosis.Notice},
		{3 * time.Second, time.Millisecond, 0, diagnosis.Wrong},
		{-3 * time.Second, time.Millisecond, 0, diagnosis.Wrong},
		{3 * time.Second, time.Millisecond, time.Second, diagnosis.Notice}, // told by the second
		{3 * time.Second, 6 * time.Second, 0, diagnosis.Fine},              // it may have been asked at the very end
	} {
		var r diagnosis.Report
		r.Clock("redis", at.Add(c.took/2).Add(c.off), at, at.Add(c.took), c.exact)
		if got := r.Findings()[0]; got.Level != c.want || (got.Do == "") != (c.want == diagnosis.Fine) {
			t.Errorf("a clock that is %s off, told within %s and to %s: %+v, want %s", c.off, c.took, c.exact, got, c.want)
		}
	}
}
