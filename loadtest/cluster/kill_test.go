//go:build servers

package cluster_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/dispatch"
)

// Of a process that is gone the servers learn when its session ends, at ZooKeeper and at Kafka alike; firing must go on
// soon after that.
const (
	session = 6 * time.Second
	resume  = session + 4*time.Second
)

// stampedeSize is how many jobs fall due within a second.
const stampedeSize = 10_000

// ownedBy groups jobs by what a service's processes divide among themselves.
func ownedBy(service string) func(jobID string) int {
	if service != "executor" {
		return func(jobID string) int { return bucket.Partition(jobID, partitions) }
	}
	fires := kgo.StickyKeyPartitioner(nil).ForTopic(dispatch.TopicFires)
	return func(jobID string) int { return fires.Partition(&kgo.Record{Key: []byte(jobID)}, kafkaPartitions) }
}

// silence is the longest time since an instant in which a group of jobs that still had calls to come had none.
func (s *sink) silence(since time.Time, group func(jobID string) int) time.Duration {
	last := map[int]time.Time{}
	var longest time.Duration
	for _, c := range s.all() { // in the order in which they came
		if c.At.Before(since) {
			continue
		}
		g := group(c.JobID)
		if last[g].IsZero() {
			last[g] = since
		}
		longest, last[g] = max(longest, c.At.Sub(last[g])), c.At
	}
	return longest
}

// amid waits until half of a stampede has fallen due, and the first job was called.
func (f *fleet) amid(ids []string, due time.Time) {
	f.t.Helper()
	time.Sleep(time.Until(due.Add(500 * time.Millisecond)))
	eventually(f.t, "the stampede has begun", time.Minute, func() bool {
		missing, _ := f.sink.missing(ids)
		return missing < len(ids)
	})
}

func (f *fleet) awaitCalls(ids []string) {
	f.t.Helper()
	eventually(f.t, "every job is called", 3*time.Minute, func() bool {
		missing, _ := f.sink.missing(ids)
		return missing == 0
	})
}

func TestProcessThatIsKilledInAStampedeLosesNothing(t *testing.T) {
	f := newInstallation(t).fleet()
	for _, service := range []string{"scheduler-worker", "bucket-loader", "executor", "retry-manager", "audit-writer"} {
		ids, due := f.stampede(stampedeSize, "/ok")
		f.amid(ids, due)
		victim := f.member(service, 0)
		victim.signal(syscall.SIGKILL)
		killed := time.Now()
		<-victim.ended
		f.awaitCalls(ids)
		_, repeated := f.sink.missing(ids)
		silent := f.sink.silence(killed, ownedBy(service))
		t.Logf("%s killed %.1f s into %d jobs: firing paused for %.1f s (%.1f sessions), every job was called after %.1f s, %d of them again",
			service, killed.Sub(due).Seconds(), len(ids), silent.Seconds(), silent.Seconds()/session.Seconds(), time.Since(due).Seconds(), repeated)
		if silent > resume {
			t.Errorf("%s: firing paused for %s after the kill, want at most %s", service, silent, resume)
		}
		if service != "executor" && repeated > 0 {
			t.Errorf("%s was killed, which called nobody, and %d jobs were called twice", service, repeated)
		}
		f.awaitReady(f.start(service, 0))
	}
	f.check(nil)
}

// A worker that was stopped wakes behind its session with what it had read before.
func TestWorkerThatWakesBehindItsSessionDispatchesNothingTwice(t *testing.T) {
	f := newInstallation(t).fleet()
	ids, due := f.stampede(stampedeSize, "/ok")
	f.amid(ids, due)
	sleeper := f.member("scheduler-worker", 0)
	sleeper.signal(syscall.SIGSTOP)
	time.Sleep(2 * session)
	sleeper.signal(syscall.SIGCONT)
	f.awaitCalls(ids)
	more, _ := f.stampede(1000, "/ok") // the one that woke is among those that dispatch these
	f.awaitCalls(more)
	if _, repeated := f.sink.missing(append(ids, more...)); repeated > 0 {
		t.Errorf("%d jobs were called twice", repeated)
	}
	f.check(nil)
}
