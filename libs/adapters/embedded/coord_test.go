package embedded_test

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
)

// A process that went on after a backup was made has drawn start numbers that the backup does not know of. Event ids have them.
func TestStartNumbersOfARestoredStoreAreNotThoseOfTheLostOne(t *testing.T) {
	db, err := embedded.Open(embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // nothing is kept
	drawn := func() int64 {
		n, err := embedded.NewCoordinator(db).StartNumber(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first, now := drawn(), time.Now()
	if err := db.SkipStarts(now); err != nil {
		t.Fatal(err)
	}
	if n := drawn(); n <= first+1000 || n <= now.Unix() {
		t.Errorf("after %d comes %d", first, n)
	}
	again := drawn()
	if err := db.SkipStarts(now.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if n := drawn(); n <= again {
		t.Errorf("with a clock that went back, %d comes after %d", n, again)
	}
}
