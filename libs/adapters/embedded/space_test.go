package embedded

import (
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func TestDiskIsLowBelowItsReserve(t *testing.T) {
	fs := vfs.NewMem()
	s := NewSpace(fs, "/data", slog.New(slog.DiscardHandler))
	if s.Low() {
		t.Error("a file system that does not know is low")
	}
	for _, c := range []struct {
		free uint64
		low  bool
	}{{MinFree, false}, {MinFree - 1, true}, {0, true}, {MinFree * 10, false}} {
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: c.free, TotalBytes: MinFree * 100})
		if s.look(); s.Low() != c.low {
			t.Errorf("with %d bytes free, low is %v", c.free, s.Low())
		}
	}
}
