package embed

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/sdk"
	"github.com/minutehand/minutehand/libs/sdk/worker"
)

const (
	killedConcurrency = 32
	killedPatience    = 4 * time.Minute
)

var full = flag.Bool("embed.full", false, "kill a program of ten thousand tasks instead of two thousand")

// program is a program of its own: it schedules the tasks, unless that was done, and runs them. It writes what it does to the standard output.
func program(dir string) {
	fail := func(err error) {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	s, err := Open(dir, Settings{Concurrency: killedConcurrency, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fail(err)
	}
	Handle(s, "work", func(_ context.Context, t *worker.Task, _ int) error {
		_, err := fmt.Printf("ran %s %s\n", t.ExecutionID, t.FencingToken)
		return err
	})
	if tasks, err := strconv.Atoi(os.Getenv("MINUTEHAND_TEST_SCHEDULE")); err == nil {
		for from := 0; from < tasks; from += 500 {
			var b sdk.JobBatch
			for n := range 500 {
				j := define("work", from+n, nil)
				j.Target.HeartbeatTimeout = sdk.Duration(5 * time.Second)
				j.Type, j.RunAt = "one_shot", time.Now().UTC().Truncate(time.Millisecond)
				b.Jobs = append(b.Jobs, j)
			}
			results, err := s.Client().CreateJobs(context.Background(), b)
			if err != nil {
				fail(err)
			}
			for _, r := range results.Results {
				if r.Job == nil {
					fail(r.Problem)
				}
				fmt.Println("scheduled", r.Job.JobID)
			}
		}
	}
	fail(s.Run(context.Background()))
}

// run starts the program and hands each of its lines to see, until that returns false; then it kills it.
func run(t *testing.T, dir string, env string, see func(words []string) bool) {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), killedPatience)
	defer end()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "MINUTEHAND_TEST_PROGRAM="+dir, env)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	for lines := bufio.NewScanner(out); lines.Scan(); { // also what it wrote before it was killed
		words := strings.Fields(lines.Text())
		if words[0] == "failed" {
			t.Fatal(lines.Text())
		}
		if !see(words) && !killed {
			killed = true
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // it was killed
	if !killed {
		t.Errorf("the program was not done after %s", killedPatience)
	}
}

// What the program said that it had scheduled is run, whenever it is killed; what runs twice is known by a greater token, and is only what ran
// when it was killed.
func TestTasksSurviveAKill(t *testing.T) {
	tasks := 2000
	if *full {
		tasks = 10_000
	}
	dir := t.TempDir()
	scheduled, tokens := map[string]bool{}, map[string][]string{}
	see := func(words []string) {
		switch words[0] {
		case "scheduled":
			scheduled[words[1]] = true
		case "ran":
			tokens[words[1]] = append(tokens[words[1]], words[2])
		}
	}
	run(t, dir, fmt.Sprint("MINUTEHAND_TEST_SCHEDULE=", tasks), func(words []string) bool {
		see(words)
		return len(tokens) < tasks/3 || len(scheduled) < tasks
	})
	for range 2 {
		before := len(tokens)
		run(t, dir, "", func(words []string) bool {
			see(words)
			return len(tokens) < min(before+tasks/4, tasks)
		})
	}
	run(t, dir, "", func(words []string) bool {
		see(words)
		return len(tokens) < tasks
	})
	twice := 0
	for execution, all := range tokens {
		if job, _, _ := strings.Cut(strings.Replace(execution, "exe_", "job_", 1), "-"); !scheduled[job] {
			t.Errorf("%s was scheduled by nobody", execution)
		}
		for i := 1; i < len(all); i++ {
			twice++
			if all[i] <= all[i-1] {
				t.Errorf("%s ran under %s after %s", execution, all[i], all[i-1])
			}
		}
	}
	if most := 3 * killedConcurrency; twice > most {
		t.Errorf("%d tasks ran twice, although no more than %d ran when it was killed", twice, most)
	}
	t.Logf("%d tasks, %d of them twice", len(tokens), twice)
}
