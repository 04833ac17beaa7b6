//go:build servers

package cluster_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/wire"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

// The servers learn that a process is gone when its session ends, at ZooKeeper and at Kafka alike; firing must go on soon
// after that.
const (
	session = 6 * time.Second
	resume  = session + 4*time.Second
)

// stampedeSize is how many jobs fall due within a second.
func stampedeSize() int { return sized(4000, 10_000) }

// ownedBy groups jobs by what a service's processes divide among themselves.
func ownedBy(service string) func(jobID string) int {
	if service != "executor" {
		return func(jobID string) int { return bucket.Partition(jobID, partitions) }
	}
	fires := kgo.StickyKeyPartitioner(nil).ForTopic(dispatch.TopicFires)
	return func(jobID string) int { return fires.Partition(&kgo.Record{Key: []byte(jobID)}, kafkaPartitions) }
}

// silence returns the longest time after since during which a group of jobs with calls still to come had none.
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
func (f *platform) amid(ids []string, due time.Time) {
	f.t.Helper()
	time.Sleep(time.Until(due.Add(500 * time.Millisecond)))
	eventually(f.t, "the stampede has begun", time.Minute, func() bool {
		missing, _ := f.sink.missing(ids)
		return missing < len(ids)
	})
}

func (f *platform) awaitCalls(ids []string) {
	f.t.Helper()
	eventually(f.t, "every job is called", 3*time.Minute, func() bool {
		missing, _ := f.sink.missing(ids)
		return missing == 0
	})
}

func TestProcessThatIsKilledInAStampedeLosesNothing(t *testing.T) {
	f := newInstallation(t).fleet()
	u := f.users(30, sized(90*time.Second, 150*time.Second))
	// A takeover shares the machine with the rest of the stampede. If an undisturbed stampede takes long, the takeover is
	// allowed as much in addition to the session, but no more than two sessions.
	calm, due := f.stampede(stampedeSize(), "/ok")
	f.awaitCalls(calm)
	undisturbed := time.Since(due)
	allowed := max(resume, session+min(undisturbed, 2*session))
	t.Logf("%d jobs were called after %.1f s without a kill", len(calm), undisturbed.Seconds())
	for _, service := range []string{"scheduler-worker", "bucket-loader", "executor", "retry-manager", "audit-writer"} {
		ids, due := f.stampede(stampedeSize(), "/ok")
		f.amid(ids, due)
		if ahead, _ := f.sink.missing(ids); ahead < len(ids)/4 {
			t.Errorf("only %d calls were still to come when %s was killed", ahead, service)
		}
		killed := time.Now()
		for kills := 1; ; kills++ {
			victim := f.Member(service, 0)
			victim.Signal(syscall.SIGKILL)
			<-victim.Ended
			if service != "audit-writer" || kills == 3 {
				break
			}
			before := f.objects()
			f.restart(service, 0)
			eventually(t, "an object is put", time.Minute, func() bool { return f.objects() > before }) // its place may not be committed yet
		}
		f.awaitCalls(ids)
		_, repeated := f.sink.missing(ids)
		silent := f.sink.silence(killed, ownedBy(service))
		t.Logf("%s killed %.1f s into %d jobs: firing paused for %.1f s (%.1f sessions), every job was called after %.1f s, %d of them again",
			service, killed.Sub(due).Seconds(), len(ids), silent.Seconds(), silent.Seconds()/session.Seconds(), time.Since(due).Seconds(), repeated)
		if silent > allowed {
			t.Errorf("%s: firing paused for %s after the kill, want at most %s", service, silent, allowed)
		}
		if service != "executor" && repeated > 0 {
			t.Errorf("%s was killed, which called nobody, and %d jobs were called twice", service, repeated)
		}
		f.restart(service, 0)
	}
	u.Wait()
	f.check(nil)
	t.Log(u.Summary())
	f.wantGrowingTokens()
	f.wantArchiveLikeTopic()
}

// objects returns how many objects the archive holds.
func (f *platform) objects() int {
	f.t.Helper()
	names, err := f.ports.Archive.List(f.t.Context(), "")
	f.must(err)
	return len(names)
}

// wantGrowingTokens checks that every later call of an execution had a greater token, compared as its target compares them.
func (f *platform) wantGrowingTokens() {
	f.t.Helper()
	last := map[string]string{}
	for _, c := range f.sink.all() {
		if c.Token <= last[c.ExecutionID] {
			f.t.Errorf("%s was called under token %s after %s", c.ExecutionID, c.Token, last[c.ExecutionID])
		}
		last[c.ExecutionID] = c.Token
	}
}

// wantArchiveLikeTopic compares the archive with the events topic, record by record.
func (f *platform) wantArchiveLikeTopic() {
	f.t.Helper()
	ctx := f.t.Context()
	archived, err := auditwriter.ReadArchive(ctx, f.ports.Archive)
	f.must(err)
	type place struct{ partition, offset int64 }
	places := map[place]string{}
	for _, x := range archived {
		at := place{x.Partition, x.Offset}
		if places[at] != "" {
			f.t.Errorf("record %d of partition %d is archived twice", x.Offset, x.Partition)
		}
		places[at] = x.EventID
	}
	consumer, err := f.ports.Log.Subscribe(ctx, dispatch.TopicEvents, "test-archive")
	f.must(err)
	end, err := f.ports.Log.End(ctx, dispatch.TopicEvents)
	f.must(err)
	read, left := 0, 0
	for _, offset := range end.Offsets {
		left += int(offset)
	}
	eventually(f.t, "the topic is read", time.Minute, func() bool {
		messages, err := consumer.Poll(ctx, 10_000)
		f.must(err)
		for i := range messages {
			m := &messages[i]
			e, err := wire.EventOf(m)
			f.must(err)
			if id := places[place{int64(m.Partition), m.Offset}]; id != e.ID {
				f.t.Errorf("record %d of partition %d tells of event %s, the archive of %q", m.Offset, m.Partition, e.ID, id)
			}
			read++
		}
		return read >= left
	})
	f.must(consumer.Close())
	if read != len(archived) {
		f.t.Errorf("the topic holds %d records, the archive %d", read, len(archived))
	}
}

// A worker that was stopped wakes after its session has ended, with what it had read before.
func TestWorkerThatWakesBehindItsSessionDispatchesNothingTwice(t *testing.T) {
	f := newInstallation(t).fleet()
	ids, due := f.stampede(stampedeSize(), "/ok")
	// Entries that it has read ahead for another host, which has room, are what it holds when it is stopped.
	ahead := make([]map[string]any, 300)
	for i := range ahead {
		ahead[i] = f.oneShot(due.Add(2*time.Second), "/ok")
		target, _ := ahead[i]["target"].(map[string]any)
		target["url"] = strings.Replace(fmt.Sprint(target["url"]), "127.0.0.1", "localhost", 1)
	}
	ids = append(ids, f.register(ahead)...)
	f.amid(ids, due)
	sleeper := f.Member("scheduler-worker", 0)
	sleeper.Signal(syscall.SIGSTOP)
	time.Sleep(2 * session)
	sleeper.Signal(syscall.SIGCONT)
	f.awaitCalls(ids)
	const dropped, fires = "minutehand_scheduler_worker_dropped_holds_total", "minutehand_scheduler_worker_fires_total"
	if n := f.metric(sleeper, dropped); n == 0 {
		t.Error("it held nothing when it was stopped: nothing was shown")
	}
	before := f.metric(sleeper, fires)
	eventually(t, "it owns partitions again", time.Minute, func() bool {
		more, _ := f.stampede(200, "/ok")
		f.awaitCalls(more)
		ids = append(ids, more...)
		return f.metric(sleeper, fires) > before
	})
	if _, repeated := f.sink.missing(ids); repeated > 0 {
		t.Errorf("%d jobs were called twice", repeated)
	}
	f.check(nil)
}
