//go:build servers

package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/fleet"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// fenced returns the blocks of shell commands of a page, each for its section.
func fenced(t *testing.T, page, section string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %s", page, section)
	}
	after, _, _ = strings.Cut(after, "\n## ")
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(after, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// operate carries out commands of a runbook in the project's folder.
func (f *platform) operate(script string, env ...string) {
	f.t.Helper()
	root, err := filepath.Abs("../..")
	f.must(err)
	ctx, cancel := context.WithTimeout(f.t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euc", script)
	cmd.Dir, cmd.Env = root, slices.Concat(os.Environ(), f.Variables, env)
	if out, err := cmd.CombinedOutput(); err != nil {
		f.t.Fatalf("a runbook's commands failed: %v\n%s\n%s", err, script, out)
	}
}

// restoredAfter is how long after the loss the restore begins: so long that everything that was due is older than the marks that a
// migration writes.
const restoredAfter = 150 * time.Second

// Cassandra is lost, and restored from a snapshot that was made in the middle of a load, by the commands of the runbook.
func TestNoJobAcceptedBeforeASnapshotIsLostWhenItIsRestored(t *testing.T) {
	const jobs, later = 1500, 100
	f := newInstallation(t).fleet()
	root, err := filepath.Abs("../..")
	f.must(err)
	commands := httptest.NewServer(http.HandlerFunc(f.kubectl))
	t.Cleanup(commands.Close)
	tools := f.kubectlAt(commands.URL)
	local := os.Getenv("MINUTEHAND_LOCAL_DIR")
	if local == "" {
		local = filepath.Join(root, ".data", "local")
	}
	env := []string{
		"NAME=" + releaseName, "NODETOOL=infra/local/local nodetool 1", "TAG=drill", "KEYSPACE=" + f.config.Cassandra.Keyspace,
		"DATA=" + filepath.Join(local, "data", "cassandra-1-of-1", "data"), "BACKUP=" + filepath.Join(t.TempDir(), "backup"),
		"MINUTEHAND_CASSANDRA_REPLICATION=" + f.config.Replication, "MINUTEHAND_KAFKA_REPLICATION=1", fmt.Sprint("MINUTEHAND_KAFKA_PARTITIONS=", kafkaPartitions),
		"PATH=" + tools + ":" + filepath.Join(root, ".bin") + ":" + os.Getenv("PATH"),
	}

	due := time.Now().Add(10 * time.Second)
	once := func(n int) []map[string]any {
		list := make([]map[string]any, n)
		for i := range list {
			list[i] = f.oneShot(due.Add(90*time.Second*time.Duration(i)/time.Duration(n)), "/ok")
		}
		return list
	}
	recurring := make([]map[string]any, 20)
	for i := range recurring {
		recurring[i] = f.oneShot(due, "/ok")
		recurring[i]["type"], recurring[i]["every"], recurring[i]["start_at"] = "interval", "2s", recurring[i]["run_at"]
		delete(recurring[i], "run_at")
	}
	ids, beats := f.register(once(jobs)), f.register(recurring)
	eventually(t, "a fifth has fired", time.Minute, func() bool { return called(f, ids) >= jobs/5 })
	snapshotAt := time.Now()
	for _, block := range fenced(t, filepath.Join(root, "runbooks", "restore-cassandra.md"), "Back up") {
		f.operate(block, env...)
	}
	took := time.Since(snapshotAt)
	lost := f.register(once(later)) // with the disk
	eventually(t, "more has fired", time.Minute, func() bool { return called(f, ids) >= jobs/2 })

	f.loseCassandra()
	// Somebody has to find the runbook. What was due between snapshot and loss is minutes old by then.
	time.Sleep(restoredAfter)
	before := len(f.sink.all())
	restoring := time.Now()
	for _, block := range fenced(t, filepath.Join(root, "runbooks", "restore-cassandra.md"), "Restore") {
		f.operate(block, env...)
	}
	up := time.Now()
	f.awaitCalls(ids)
	for _, id := range beats {
		eventually(t, id+" goes on", time.Minute, func() bool {
			return slices.ContainsFunc(f.sink.all(), func(c ledger.Call) bool { return c.JobID == id && c.ScheduledFor.After(up) })
		})
	}
	repeated := f.recognisable(snapshotAt)
	for i, id := range lost {
		a, err := f.ask(t.Context(), i%2, http.MethodGet, "/jobs/"+id, nil)
		f.must(err)
		if a.status != http.StatusNotFound {
			t.Errorf("%s was registered after the snapshot, and is answered %d", id, a.status)
		}
	}
	t.Logf("the snapshot took %.1f s, the restore %.1f s; %d calls before it, %d in all; of %d one-shots and %d recurring jobs accepted before, none is lost; "+
		"%d executions were called again, each under a greater token; %d jobs accepted after the snapshot are gone",
		took.Seconds(), up.Sub(restoring).Seconds(), before, len(f.sink.all()), jobs, len(beats), repeated, len(lost))
	if repeated == 0 {
		t.Error("nothing was called again: the snapshot was not from the middle")
	}
}

// loseCassandra ends everything at once, and deletes what Cassandra holds.
func (f *platform) loseCassandra() {
	f.t.Helper()
	for _, s := range fleet.Services() {
		for n := range 2 {
			f.Member(s, n).Signal(syscall.SIGKILL)
		}
	}
	local(f.t, "wipe", "cassandra")
	local(f.t, "up", "cassandra")
}

func called(f *platform, ids []string) int {
	missing, _ := f.sink.missing(ids)
	return len(ids) - missing
}

// recognisable checks that what was called more than once was called after an instant, under a greater token each time, and returns how
// many executions were.
func (f *platform) recognisable(since time.Time) (repeated int) {
	f.t.Helper()
	byExecution := map[string][]ledger.Call{}
	for _, c := range f.sink.all() {
		byExecution[c.ExecutionID] = append(byExecution[c.ExecutionID], c)
	}
	for id, calls := range byExecution {
		if len(calls) > 1 {
			repeated++
		}
		for i, c := range calls[1:] {
			if c.Token <= calls[i].Token {
				f.t.Errorf("%s was called again under the token %s, after %s", id, c.Token, calls[i].Token)
			}
			if c.At.Before(since) {
				f.t.Errorf("%s was called twice before the snapshot", id)
			}
		}
	}
	return repeated
}
