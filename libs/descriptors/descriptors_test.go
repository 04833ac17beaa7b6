package descriptors_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/minutehand/minutehand/libs/descriptors"
)

func TestWhatIsSharedOutIsNeverMoreThanThereIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(descriptors.Least, 1<<20).Draw(t, "limit")
		s, err := descriptors.Of(limit)
		if err != nil || s.Store < 128 || s.Clients < 128 || s.Calls < 128 || s.Store+s.Clients+s.Calls >= limit {
			t.Fatalf("of %d: %+v (%v)", limit, s, err)
		}
	})
	if _, err := descriptors.Of(descriptors.Least - 1); err == nil || !strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("too few are answered %v", err)
	}
	if descriptors.Limit() < 1 {
		t.Error("there is no limit")
	}
}
