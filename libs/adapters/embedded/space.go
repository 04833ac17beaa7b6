package embedded

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/run"
)

const (
	// MinFree is how much of the disk must be free to accept new work: accepted work needs room to be carried out and recorded.
	MinFree = 256 << 20
	// lookEvery is the pause between two checks of the disk.
	lookEvery = time.Second
)

// Space watches the disk under a folder.
type Space struct {
	fs  vfs.FS
	dir string
	log *slog.Logger
	low atomic.Bool
	// free and size are those of the disk in bytes, as they were last seen.
	free, size atomic.Uint64
}

// NewSpace returns a Space that watches the disk under dir once it runs; fsys nil means the real file system.
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

// Run checks the disk until ctx ends.
func (s *Space) Run(ctx context.Context) error {
	for run.Sleep(ctx, lookEvery) == nil {
		s.look()
	}
	return nil
}

// Register adds what it sees to the metrics.
func (s *Space) Register(metrics prometheus.Registerer) {
	gauge := func(name, help string, value *atomic.Uint64) {
		metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value.Load()) }))
	}
	gauge("minutehand_store_disk_free_bytes", "What is free on the disk of the data folder.", &s.free)
	gauge("minutehand_store_disk_size_bytes", "Size of the disk of the data folder.", &s.size)
}

func (s *Space) look() {
	usage, err := s.fs.GetDiskUsage(s.dir)
	if err != nil {
		return // a file system that cannot say; what fails there fails loudly
	}
	s.free.Store(usage.AvailBytes)
	s.size.Store(usage.TotalBytes)
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
