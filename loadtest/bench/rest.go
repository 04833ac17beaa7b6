package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
)

// atRest measures stampede and steady load on an empty store (A) and on one with jobs at rest (B), in the order A B A B.
func atRest(ctx context.Context, binary, target string, fires int, steady time.Duration, rest int) error {
	dirs := make([]string, 2)
	var heaps, disks [2]float64
	var cpu, p99 [2]samples
	for i := range dirs {
		dir, err := os.MkdirTemp("", "minutehand-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		dirs[i] = dir
		n := 0
		if i == 1 {
			n = rest
		}
		if heaps[i], disks[i], err = fill(ctx, binary, target, dir, n); err != nil {
			return err
		}
	}
	for round := range 4 {
		i := round % 2
		var r results
		p, err := start(ctx, binary, dirs[i])
		if err != nil {
			return err
		}
		if err := errors.Join(p.stampede(ctx, &r, target, fires), p.steady(ctx, &r, target, steady), p.stop()); err != nil {
			return err
		}
		cpu[i], p99[i] = append(cpu[i], r.cpu...), append(p99[i], r.p99...)
	}
	fmt.Printf("\n| with | CPU per 1,000 fires of the stampede | steady p99 |\n|---|---|---|\n")
	for i, name := range []string{"no job at rest", fmt.Sprintf("%d jobs at rest", rest)} {
		fmt.Printf("| %s | %s s | %s ms |\n", name, cpu[i], p99[i])
	}
	fmt.Printf("\nA job at rest takes %.0f bytes of memory (live heap and caches) and %.0f bytes of disk after compaction.\n",
		(heaps[1]-heaps[0])/float64(rest), (disks[1]-disks[0])/float64(rest))
	return nil
}

// fill puts n jobs at rest into a new store. It returns the memory it takes, idle after a start, and the disk space after
// compaction.
func fill(ctx context.Context, binary, target, dir string, n int) (heap, disk float64, err error) {
	p, err := start(ctx, binary, dir)
	if err != nil {
		return 0, 0, err
	}
	if err := errors.Join(p.registerBatches(ctx, n, jobsAtRest(target, restingText)), p.stop()); err != nil {
		return 0, 0, err
	}
	db, err := embedded.Open(embedded.Options{Dir: filepath.Join(dir, "store")})
	if err != nil {
		return 0, 0, err
	}
	if err := errors.Join(db.Compact(ctx), db.Close()); err != nil {
		return 0, 0, err
	}
	err = filepath.WalkDir(filepath.Join(dir, "store"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			disk += float64(info.Size())
		}
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	if p, err = start(ctx, binary, dir); err != nil {
		return 0, 0, err
	}
	// The store's caches add to the live heap, which the last collection reports. The least of some looks is used.
	for range 5 {
		time.Sleep(time.Second)
		m, err := p.metrics(ctx)
		if err != nil {
			return 0, 0, errors.Join(err, p.stop())
		}
		if live := m["go_gc_heap_live_bytes"] + m["minutehand_store_cache_bytes"]; heap == 0 || live < heap {
			heap = live
		}
	}
	return heap, disk, p.stop()
}
