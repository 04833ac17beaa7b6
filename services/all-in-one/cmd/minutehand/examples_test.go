package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rogpeppe/go-internal/testscript"
)

// readme is the README of the repository, seen from this folder.
const readme = "../../../../README.md"

// endless are the commands that run until they are interrupted.
var endless = regexp.MustCompile(`^minutehand (run|runner|sink)\b`)

// TestEveryCommandTeaches asserts that every command says in a line what it does, and shows how.
func TestEveryCommandTeaches(t *testing.T) {
	all, err := commands()
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range all {
		if node.Help == "" {
			t.Errorf("%q has no help", node.Path())
		}
		path := strings.TrimSpace("minutehand " + node.Path())
		shown := false
		for _, line := range helpExamples(node) {
			shown = shown || line == path || strings.HasPrefix(line, path+" ")
		}
		if !shown {
			t.Errorf("the help of %q shows no example of it", path)
		}
		for _, f := range node.Flags {
			if f.Help == "" {
				t.Errorf("--%s of %q has no help", f.Name, path)
			}
		}
	}
}

// commands are the application and everything below it that is not hidden.
func commands() ([]*kong.Node, error) {
	parser, err := newParser(context.Background(), func(int) {})
	if err != nil {
		return nil, err
	}
	var all []*kong.Node
	err = kong.Visit(parser.Model.Node, func(v kong.Visitable, next kong.Next) error {
		node, ok := v.(*kong.Node)
		if ok && node.Hidden {
			return nil
		}
		if ok {
			all = append(all, node)
		}
		return next(nil)
	})
	return all, err
}

// helpExamples are the command lines in a command's help: what is indented and begins with minutehand, up to an
// explanation.
func helpExamples(node *kong.Node) []string {
	var all []string
	for line := range strings.Lines(node.Detail) {
		if rest, ok := strings.CutPrefix(line, "  minutehand"); ok {
			line, _, _ := strings.Cut("minutehand"+rest, "  ")
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// readmeExamples are the command lines in the fenced blocks of the README that need nothing but the binary and curl.
func readmeExamples(text string) []string {
	var all []string
	inside, shell := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if kind, ok := strings.CutPrefix(line, "```"); ok {
			inside = !inside
			shell = inside && (kind == "" || kind == "sh")
			continue
		}
		line = strings.TrimPrefix(line, ".bin/")
		if call, ok := strings.CutPrefix(line, "curl "); shell && ok {
			all = append(all, "curl --fail-with-body "+call) // else a refusal counts as success
		}
		if shell && strings.HasPrefix(line, "minutehand ") {
			all = append(all, line)
		}
	}
	return all
}

// examples runs the command lines of every help, or of the README, against the server at ADDR: each must succeed.
func examples(ts *testscript.TestScript, _ bool, args []string) {
	seen := map[string]bool{}
	var lines []string
	switch args[0] {
	case "help":
		all, err := commands()
		ts.Check(err)
		for _, node := range all {
			lines = append(lines, helpExamples(node)...)
		}
	case "readme":
		text, err := os.ReadFile(readme)
		ts.Check(err)
		lines = readmeExamples(string(text))
	}
	if len(lines) == 0 {
		ts.Fatalf("there are no examples in %s", args[0])
	}
	for _, line := range lines {
		if seen[line] {
			continue
		}
		seen[line] = true
		if endless.MatchString(line) {
			interrupt(ts, line)
			continue
		}
		if err := ts.Exec("sh", "-c", concrete(ts, line)); err != nil {
			ts.Fatalf("the example in %s does not work: %s: %v", args[0], line, err)
		}
	}
}

// concrete puts what is there for what an example stands for: each gets a job, an execution, or an operation of its own.
func concrete(ts *testscript.TestScript, line string) string {
	line = strings.NewReplacer(
		"http://127.0.0.1:9000", ts.Getenv("TARGET"), "https://example.com", ts.Getenv("TARGET"),
		"127.0.0.1:8080", ts.Getenv("ADDR"),
	).Replace(line)
	for placeholder, value := range map[string]func(*testscript.TestScript) string{`\bJOB\b`: newJob, `\bEXECUTION\b`: newExecution, `\bOPERATION\b`: newOperation} {
		if pattern := regexp.MustCompile(placeholder); pattern.MatchString(line) {
			line = pattern.ReplaceAllLiteralString(line, value(ts))
		}
	}
	return line
}

func newJob(ts *testscript.TestScript) string {
	return post(ts, "/jobs", map[string]any{
		"name": "example", "type": "interval", "every": "1h", "start_at": "2020-01-01T00:00:00Z",
		"target": map[string]any{"kind": "http_webhook", "url": ts.Getenv("TARGET")},
	}, "job_id")
}

// newOperation begins an operation that takes a while.
func newOperation(ts *testscript.TestScript) string {
	body := map[string]any{"from": "2026-01-01T00:00:00Z", "to": "2026-01-03T00:00:00Z", "rate_per_second": 1}
	return post(ts, "/jobs/"+newJob(ts)+"/backfill", body, "operation_id")
}

// newExecution triggers a job and waits until the execution is on record.
func newExecution(ts *testscript.TestScript) string {
	id := post(ts, "/jobs/"+newJob(ts)+"/trigger", nil, "execution_id")
	poll(ts, "execution "+id, func() bool {
		c := client{Server: "http://" + ts.Getenv("ADDR")}
		_, err := c.do(context.Background(), http.MethodGet, "/executions/"+id, nil, nil)
		return err == nil
	})
	return id
}

func post(ts *testscript.TestScript, path string, body any, member string) string {
	var answer map[string]any
	c := client{Server: "http://" + ts.Getenv("ADDR")}
	_, err := c.do(context.Background(), http.MethodPost, path, body, &answer)
	ts.Check(err)
	id, _ := answer[member].(string)
	return id
}

// interrupt runs a command that does not end by itself until it listens or serves, on a port and in a folder of its own.
func interrupt(ts *testscript.TestScript, line string) {
	dir, err := os.MkdirTemp(ts.MkAbs("."), "data-")
	ts.Check(err)
	line = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllLiteralString(line, "127.0.0.1:0")
	line = regexp.MustCompile(`\bDIR\b`).ReplaceAllLiteralString(line, dir)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+line)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "GORACE="+withoutLinger, "MINUTEHAND_DATA="+dir, "MINUTEHAND_LISTEN=127.0.0.1:0",
		"MINUTEHAND_SINK_LISTEN=127.0.0.1:0", "MINUTEHAND_SERVER=http://"+ts.Getenv("ADDR"))
	cmd.WaitDelay = time.Second
	cmd.Stderr = ts.Stderr()
	stdout, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	listens := false
	for lines := bufio.NewScanner(stdout); !listens && lines.Scan(); {
		listens = strings.Contains(lines.Text(), "listens on http://") || strings.HasPrefix(lines.Text(), "the runner serves the pool ")
	}
	ts.Check(cmd.Process.Signal(os.Interrupt))
	_, _ = io.Copy(io.Discard, stdout)
	if err := cmd.Wait(); err != nil || !listens {
		ts.Fatalf("the example does not work: %s: it listened: %v, and ended with %v", line, listens, err)
	}
}
