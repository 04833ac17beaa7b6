// Command mutants shows that the simulation notices when a line of a service is wrong. It builds the simulation with one
// line of the source changed, alongside the overlay of ../steady, and runs seeds until one breaks an invariant.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// mostSeeds is the number of seeds within which a mutant must be caught.
const mostSeeds = 500

// atOnce is how many mutants are built and run at a time; a simulation takes one core.
const atOnce = 2

func main() {
	overlay := flag.String("overlay", "", "the overlay file that ./steady has made")
	only := flag.String("only", "", "run the mutants whose names contain this")
	share := flag.Int("share", 1, "run one in this many of the mutants")
	turn := flag.Uint64("turn", 0, "which of them: those of another number, as a rule, are others")
	flag.Parse()
	if err := run(context.Background(), *overlay, func(i int, m *mutant) bool {
		return strings.Contains(m.name, *only) && uint64(i)%uint64(*share) == *turn%uint64(*share)
	}); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, overlay string, which func(i int, m *mutant) bool) error {
	dir, err := os.MkdirTemp("", "minutehand-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var missed atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, m := range mutants {
		if !which(i, &m) {
			continue
		}
		group.Go(func() error {
			began := time.Now()
			how, err := m.try(ctx, filepath.Join(dir, strconv.Itoa(i)), overlay)
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			if how == "" {
				missed.Add(1)
				how = fmt.Sprintf("NOT CAUGHT within %d seeds", mostSeeds)
			}
			fmt.Printf("%-56s %3.0f s  %s\n", m.name, time.Since(began).Seconds(), how)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if n := missed.Load(); n > 0 {
		return fmt.Errorf("%d mutants were not caught", n)
	}
	return nil
}

// try builds and runs a mutant. It returns the seed and the violation, or nothing if there was none.
func (m mutant) try(ctx context.Context, dir, overlay string) (how string, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	mutated, err := m.overlay(dir, overlay)
	if err != nil {
		return "", err
	}
	binary, out := filepath.Join(dir, "sim.test"), filepath.Join(dir, "report.json")
	build := exec.CommandContext(ctx, "go", "test", "-vet=off", "-ldflags=-s -w", "-overlay", mutated, "-c", "-o", binary, "./loadtest/sim")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, text)
	}
	// With replays a child ends at the first seed that breaks something.
	child := exec.CommandContext(ctx, binary, "-test.run=^TestChild$", "-test.timeout=1h", "-sim.child="+out, fmt.Sprintf("-sim.first=%d", max(m.first, 1)),
		fmt.Sprintf("-sim.seeds=%d", mostSeeds), "-sim.replays=1")
	if text, err := child.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, text)
	}
	var report struct {
		Traces []struct {
			Seed       uint64   `json:"seed"`
			Violations []string `json:"violations"`
		}
	}
	text, err := os.ReadFile(out)
	if err == nil {
		err = json.Unmarshal(text, &report)
	}
	if err != nil || len(report.Traces) == 0 {
		return "", err
	}
	t := report.Traces[0]
	return fmt.Sprintf("caught by seed %d: %s", t.Seed, t.Violations[0]), nil
}

// overlay writes the changed file, and an overlay that adds it to the existing one.
func (m mutant) overlay(dir, overlay string) (path string, err error) {
	source, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.from); n != 1 {
		return "", fmt.Errorf("%s has the line that is to be changed %d times: say anew what it is", m.file, n)
	}
	var files struct{ Replace map[string]string }
	list, err := os.ReadFile(overlay)
	if err == nil {
		err = json.Unmarshal(list, &files)
	}
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, "mutated.go")
	files.Replace[source] = changed
	if list, err = json.Marshal(files); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), m.from, m.to, 1)), 0o600); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, list, 0o600)
}
