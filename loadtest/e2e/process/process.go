// Package process runs the real minutehand binary for tests. It builds the binary once, starts it on a data folder, kills
// it with SIGKILL, starts it again, and afterwards reads from its folder what it left there. A sink beside it records every
// call, so that package ledger can check what was promised against what happened.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/users"
)

const (
	// readyLimit is how long a start may take, on a busy machine and with a log to replay.
	readyLimit = 30 * time.Second
	// stopLimit is how long a graceful stop may take: the executor's drain and the archive's, 20 s each, and a margin.
	stopLimit = 60 * time.Second
	// look is the pause between two looks at a condition.
	look = 20 * time.Millisecond
)

// Build builds the binary into dir and returns its path. It builds in the binary's own module, so that no workspace is
// needed, and without the race detector, because the tests are of the binary that is shipped.
func Build(ctx context.Context, dir string) (string, error) {
	module, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/minutehand/minutehand/services/all-in-one").Output()
	if err != nil {
		return "", fmt.Errorf("find the binary's module: %w", err)
	}
	path := filepath.Join(dir, "minutehand")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/minutehand")
	cmd.Dir = string(bytes.TrimSpace(module))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the binary: %w: %s", err, out)
	}
	return path, nil
}

// Process is `minutehand run` on its own folder and port, which stay the same from start to start.
type Process struct {
	// Dir is the data folder, URL where the API listens.
	Dir, URL string
	// StartedAt is when the current process was started, ReadyAt when it reported that it was ready.
	StartedAt, ReadyAt time.Time

	// FileLimit is the file size in KiB beyond which the next start cannot write, like a full disk. 0 is no limit.
	FileLimit int
	// Descriptors is how many files and connections the next start may have open. 0 is no limit.
	Descriptors int
	// Users are the users that work with it, if any; its account reads the former definitions of their jobs.
	Users *users.Users

	t      *testing.T
	binary string
	stderr bytes.Buffer
	addr   string
	client *http.Client
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended, with ended
	ended  error
}

// New returns a process that has not started. It is killed if it still runs at the end of the test.
func New(t *testing.T, binary string) *Process {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // only asks for a free port
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	p := &Process{
		Dir: t.TempDir(), URL: "http://" + addr, t: t, binary: binary, addr: addr,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: Clients}},
	}
	t.Cleanup(func() {
		if p.cmd != nil {
			p.Kill()
		}
	})
	return p
}

// Start starts the process and waits until it is ready.
func (p *Process) Start() {
	p.t.Helper()
	p.StartedAt = time.Now()
	// The context ends just before the test's cleanups, and with it whatever still runs.
	args := []string{"run", "--data", p.Dir, "--listen", p.addr, "--log-level", "warn", "--memory", "512"}
	cmd := exec.CommandContext(p.t.Context(), p.binary, args...)
	if p.FileLimit > 0 || p.Descriptors > 0 {
		limits := ""
		if p.FileLimit > 0 {
			limits += "ulimit -f " + strconv.Itoa(p.FileLimit) + "; "
		}
		if p.Descriptors > 0 {
			limits += "ulimit -n " + strconv.Itoa(p.Descriptors) + "; "
		}
		limited := []string{"-c", limits + `exec "$0" "$@"`, p.binary}
		cmd = exec.CommandContext(p.t.Context(), "bash", append(limited, args...)...)
	}
	p.stderr.Reset()
	cmd.Stderr = io.MultiWriter(p.t.Output(), &p.stderr)
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.cmd, p.exited = cmd, make(chan struct{})
	go func() {
		p.ended = cmd.Wait()
		close(p.exited)
	}()
	WaitFor(p.t, readyLimit, "minutehand is ready", func() bool {
		select {
		case <-p.exited:
			p.cmd = nil
			p.t.Fatalf("minutehand ended at its start: %v", p.ended)
		default:
		}
		_, err := p.get("/readyz")
		return err == nil
	})
	p.ReadyAt = time.Now()
}

// Kill ends the process with SIGKILL and returns when it is gone.
func (p *Process) Kill() {
	p.t.Helper()
	cmd := p.cmd
	p.cmd = nil
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error("kill:", err)
	}
	select {
	case <-p.exited:
	case <-time.After(stopLimit):
		p.t.Errorf("minutehand is still there %s after SIGKILL", stopLimit)
	}
	p.client.CloseIdleConnections()
}

// Died waits until the process has ended by itself, and returns its exit code and what it wrote to standard error.
func (p *Process) Died(limit time.Duration) (code int, said string) {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(limit):
		p.t.Fatalf("minutehand still runs after %s", limit)
	}
	code = p.cmd.ProcessState.ExitCode()
	p.cmd = nil
	p.client.CloseIdleConnections()
	return code, p.stderr.String()
}

// Stop asks the process with SIGTERM to end, which it must do in time and successfully.
func (p *Process) Stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal("stop:", err)
	}
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-p.exited:
		p.cmd = nil
		if p.ended != nil {
			p.t.Fatalf("a graceful stop ended with: %v", p.ended)
		}
	case <-limit.C:
		p.t.Fatalf("minutehand did not stop within %s", stopLimit)
	}
}

func (p *Process) get(path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.URL+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s: %s", path, resp.Status, body)
	}
	return body, nil
}

// Metrics are the samples of /metrics, by their names and labels as printed there.
type Metrics map[string]float64

// Metrics reads /metrics.
func (p *Process) Metrics() Metrics {
	p.t.Helper()
	text, err := p.get("/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	m := Metrics{}
	for line := range strings.Lines(string(text)) {
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64); err == nil {
			m[line[:i]] = v
		}
	}
	return m
}

// Of returns a sample that must exist: a metric that was renamed must not read as 0.
func (m Metrics) Of(t *testing.T, name string) float64 {
	t.Helper()
	v, ok := m[name]
	if !ok {
		t.Fatalf("/metrics has no %s", name)
	}
	return v
}

// Lag returns how many records of a topic come after a group's committed position.
func (m Metrics) Lag(t *testing.T, topic, group string) float64 {
	t.Helper()
	return m.Of(t, fmt.Sprintf("minutehand_log_lag_records{group=%q,topic=%q}", group, topic))
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// PeakMemory returns the most memory that the process ever held, in bytes: VmHWM of /proc/PID/status.
func (p *Process) PeakMemory() int64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	p.t.Fatal("/proc has no VmHWM of the process")
	return 0
}

// WaitFor waits until a condition holds, and fails the test if that takes longer than the limit.
func WaitFor(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain until %s", limit, what)
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// Backup makes a backup of what the process has, in a folder that must not exist.
func (p *Process) Backup(to string) {
	p.t.Helper()
	if out, err := exec.CommandContext(p.t.Context(), p.binary, "backup", to, "--data", p.Dir).CombinedOutput(); err != nil {
		p.t.Fatalf("backup: %v: %s", err, out)
	}
}

// Restore makes a data folder from a backup; the next start uses it.
func (p *Process) Restore(from, dir string) {
	p.t.Helper()
	if out, err := exec.CommandContext(p.t.Context(), p.binary, "restore", from, "--data", dir).CombinedOutput(); err != nil {
		p.t.Fatalf("restore: %v: %s", err, out)
	}
	p.Dir = dir
}
