package embedded

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/run"
)

const (
	// MinFree is how much of the disk must be free for new work to be taken: what was taken before needs room to be
	// carried out and put on record.
	MinFree = 256 << 20
	// lookEvery is the pause between two looks at the disk.
	lookEvery = time.Second
)

// Space watches the disk under a folder.
type Space struct {
	fs  vfs.FS
	dir string
	log *slog.Logger
	low atomic.Bool
}

// NewSpace watches the disk under dir once it runs; fsys nil means the real file system.
func NewSpace(fsys vfs.FS, dir string, log *slog.Logger) *Space {
	if fsys == nil {
		fsys = vfs.Default
	}
	s := &Space{fs: fsys, dir: dir, log: log}
	s.look()
	return s
}

// Low reports whether less than MinFree is free.
func (s *Space) Low() bool { return s.low.Load() }

// Run looks at the disk until ctx ends.
func (s *Space) Run(ctx context.Context) error {
	for run.Sleep(ctx, lookEvery) == nil {
		s.look()
	}
	return nil
}

func (s *Space) look() {
	usage, err := s.fs.GetDiskUsage(s.dir)
	if err != nil {
		return // a file system that does not know; what fails there fails loudly
	}
	low := usage.AvailBytes < MinFree
	if low == s.low.Swap(low) {
		return
	}
	if low {
		s.log.Warn("the disk is nearly full: no new work is taken until there is room again", "free_mib", usage.AvailBytes>>20)
	} else {
		s.log.Info("the disk has room again")
	}
}
