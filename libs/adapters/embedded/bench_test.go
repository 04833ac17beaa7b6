package embedded

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
)

const atOnce = 256

// BenchmarkAttempts begins and ends attempts, 256 at a time.
func BenchmarkAttempts(b *testing.B) {
	db, log := openLog(b, vfs.NewMem())
	defer func() { log.Close(); _ = db.Close() }()
	records, err := NewRecords(b.Context(), db, 0)
	if err != nil {
		b.Fatal(err)
	}
	due := job.Instant(time.Now().Add(time.Hour))
	ends, entries := make([]attempts.Completion, atOnce), make([]job.Entry, atOnce)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		i := n % atOnce
		e := &entries[i]
		*e = job.Entry{Locator: job.Locator{DueAt: due, ExecutionID: fmt.Sprintf("exe_01M7ZJW5E6D77SAJPXRW%06d-s1795644758752", n), Attempt: 1, DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ"}, JobID: "job_01M7ZJW5E6D77SAJPXRW35C2CA"}
		now := time.Now()
		k, h := attempts.KeyOf(e), attempts.Holder{Name: "executor", DefinitionID: e.DefinitionID, Start: int64(n + 1)}
		_, began, err := records.Begin(b.Context(), k, h, now.Add(time.Minute), attempts.Check{Entry: e, Incarnation: db.Incarnation()}, now)
		if err != nil || !began {
			b.Fatal(began, err)
		}
		ends[i] = attempts.Completion{Key: k, Token: job.Token{Counter: 1, Start: h.Start}, Outcome: &job.Outcome{Kind: job.OutcomeSucceeded}}
		if n++; n%atOnce == 0 {
			if _, err := records.Finish(b.Context(), ends, now); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkLog publishes, reads and commits records of 600 bytes, 256 at a time.
func BenchmarkLog(b *testing.B) {
	for topic, group := range map[string]string{dispatch.TopicFires: dispatch.GroupExecutor, dispatch.TopicEvents: dispatch.GroupSettle} {
		b.Run(topic, func(b *testing.B) {
			db, log := openLog(b, vfs.NewMem())
			defer func() { log.Close(); _ = db.Close() }()
			c, err := log.Subscribe(b.Context(), topic, group)
			if err != nil {
				b.Fatal(err)
			}
			records := make([]dispatch.Message, atOnce)
			for i := range records {
				records[i] = dispatch.Message{Key: fmt.Sprintf("job_01M7ZJW5E6D77SAJPXRW35%04d", i), Value: make([]byte, 600)}
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if n++; n%atOnce != 0 {
					continue
				}
				if err := log.Publish(b.Context(), topic, records); err != nil {
					b.Fatal(err)
				}
				next := map[int]int64{}
				for read := 0; read < atOnce; {
					messages, err := c.Poll(b.Context(), atOnce)
					if err != nil {
						b.Fatal(err)
					}
					for _, m := range messages {
						next[m.Partition] = m.Offset + 1
					}
					read += len(messages)
				}
				if err := c.Commit(b.Context(), next); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
