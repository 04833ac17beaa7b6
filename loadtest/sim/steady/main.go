// Command steady writes an overlay for a Go toolchain, for `go build -overlay`, with which a synctest bubble on one
// processor runs alike every time. Selects, timers of one instant and iterations over maps take their turns by numbers that
// follow from the bubble's time. The machine's clock neither preempts a goroutine nor overtakes it.
//
// It changes copies of a few lines of the runtime, and reports an error if a version has different lines. A build with it
// is for the simulation alone.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// patches returns the lines to replace, by file below the toolchain's src.
func patches() map[string][][2]string {
	return map[string][][2]string{
		"runtime/synctest.go": {
			{"\tactive  int // other sources of activity\n", "\tactive  int // other sources of activity\n\n\trandom [3]uint64 // of the turns: for timers, selects, and all the rest, so that what is made once disturbs little\n"},
			{"\t\tbubble.now = next\n", "\t\tbubble.now = next\n\t\tbubble.random = [3]uint64{uint64(next), uint64(next) + 1<<62, uint64(next) + 1<<63}\n"},
			{"\n// A synctestBubble is", `
// bubbleRandom gives a bubble's next number.
//
//go:nosplit
func bubbleRandom(b *synctestBubble, stream int) uint64 {
	b.random[stream] += 0x9e3779b97f4a7c15
	x := b.random[stream]
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// A synctestBubble is`},
		},
		"runtime/rand.go": {
			{"\tmp := getg().m\n\tc := &mp.chacha8\n", "\tif b := getg().bubble; b != nil {\n\t\treturn bubbleRandom(b, 2)\n\t}\n\tmp := getg().m\n\tc := &mp.chacha8\n"},
		},
		"runtime/select.go": {
			{"j := cheaprandn(uint32(norder + 1))", "j := cheaprandn(uint32(norder + 1))\n\t\tif b := getg().bubble; b != nil {\n\t\t\tj = uint32(bubbleRandom(b, 1) % uint64(norder+1))\n\t\t}"},
		},
		"runtime/time.go": {
			{"t.rand = cheaprand()", "t.rand = uint32(bubbleRandom(getg().bubble, 0))"},
		},
		// The order of a map of strings follows from these, which come from the system's random numbers.
		"runtime/alg.go": {
			{"hashkey[i] = uintptr(bootstrapRand())", "hashkey[i] = uintptr(i+1) * 0x9e3779b97f4a7c15"},
			{"key[i] = bootstrapRand()", "key[i] = uint64(i+1) * 0x9e3779b97f4a7c15"},
		},
		"runtime/proc.go":        {{"const forcePreemptNS = 10 * 1000 * 1000 // 10ms", "const forcePreemptNS = 1 << 60"}},
		"internal/sync/mutex.go": {{"starvationThresholdNs = 1e6", "starvationThresholdNs = 1 << 60"}},
	}
}

func main() {
	out := flag.String("o", "", "the folder to write the overlay into; it is named overlay.json there")
	root := flag.String("goroot", "", "the toolchain: what go env GOROOT says")
	flag.Parse()
	if err := write(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, "steady:", err)
		os.Exit(1)
	}
}

func write(root, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	replace := map[string]string{}
	for name, lines := range patches() {
		from := filepath.Join(root, "src", filepath.FromSlash(name))
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		changed := string(text)
		for _, l := range lines {
			if strings.Count(changed, l[0]) != 1 {
				return fmt.Errorf("%s has no single %q: this Go has another runtime than Go 1.26, change the patch", name, l[0])
			}
			changed = strings.Replace(changed, l[0], l[1], 1)
		}
		to := filepath.Join(out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, []byte(changed), 0o644); err != nil {
			return err
		}
		replace[from] = to
	}
	text, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "overlay.json"), text, 0o644)
}
