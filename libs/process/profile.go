//go:build profile

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"
)

// A binary built with -tags profile writes a CPU profile of every ten seconds, and one of the heap after each, into the folder that
// MINUTEHAND_PROFILES names.
func init() {
	dir := os.Getenv("MINUTEHAND_PROFILES")
	if dir == "" {
		return
	}
	go func() {
		for {
			name := filepath.Join(dir, fmt.Sprintf("%s-%d.pprof", filepath.Base(os.Args[0]), time.Now().Unix()))
			file, err := os.Create(name)
			if err != nil || pprof.StartCPUProfile(file) != nil {
				return
			}
			time.Sleep(10 * time.Second)
			pprof.StopCPUProfile()
			if file.Close() != nil {
				return
			}
			heap, err := os.Create(name + ".heap")
			if err != nil || pprof.WriteHeapProfile(heap) != nil || heap.Close() != nil {
				return
			}
		}
	}()
}
