package auditwriter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

var (
	oldDay  = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	settled = oldDay.Add(24*time.Hour + SettledAfter)
)

// archiveOf returns an archive with small objects of a day, three in each of two hours, and the ids of their events.
func archiveOf(t *testing.T) (objects, []string) {
	t.Helper()
	into := objects{}
	var ids []string
	for hour := range 2 {
		for partition := range 3 {
			a, _ := newArchiver(t, DefaultConfig(), into)
			var messages []dispatch.Message
			for i := range 4 {
				id := fmt.Sprintf("exe_%d_%d_%d", hour, partition, i)
				ids = append(ids, id)
				messages = append(messages, dispatch.Message{
					Partition: partition, Offset: int64(10*hour + i), AppendedAt: oldDay.Add(time.Duration(hour)*time.Hour + time.Duration(i)*time.Minute),
					Value: wire.MarshalEvent(&job.Event{ID: id, Type: job.EventAttempt, At: oldDay, Target: job.TargetRef{Kind: "http_webhook", Host: "a.example"}}),
				})
			}
			if err := a.take(t.Context(), messages); err != nil {
				t.Fatal(err)
			}
			for _, b := range a.buffers() {
				if err := a.close(t.Context(), b); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	slices.Sort(ids)
	return into, ids
}

// read returns the ids of the events that a reader of a day sees.
func readDay(t *testing.T, a archive.Archive) (ids []string, objects int) {
	t.Helper()
	names, err := DayObjects(t.Context(), a, "local", oldDay)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		o, err := a.Open(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		err = Scan(o, []string{"event_id", "target_host", "log_partition", "pool", "deadline_at"}, func(v []any) error {
			if v[1] != "a.example" || v[2] == nil || v[3] != nil || v[4] != nil {
				return fmt.Errorf("a row is %v", v)
			}
			ids = append(ids, v[0].(string))
			return nil
		})
		if err := errors.Join(err, o.Close()); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(ids)
	return ids, len(names)
}

// dying is an archive whose process dies at the n-th call that writes, before it or after it.
type dying struct {
	objects
	left  int
	after bool
}

var errDied = errors.New("the process died")

func (d *dying) PutIfAbsent(ctx context.Context, name string, body []byte) error {
	if d.left--; d.left < 0 {
		if d.after {
			_ = d.objects.PutIfAbsent(ctx, name, body)
		}
		return errDied
	}
	return d.objects.PutIfAbsent(ctx, name, body)
}

func TestDayIsReadOnceWhereverItsCompactionStops(t *testing.T) {
	for n := range 6 {
		for _, after := range []bool{false, true} {
			into, want := archiveOf(t)
			d := &dying{into, n, after}
			_, err := Compact(t.Context(), d, "local", oldDay, settled, nil)
			if died := n < 4; errors.Is(err, errDied) != died { // plan, two hours, mark
				t.Fatalf("after %d writes: %v", n, err)
			}
			if got, _ := readDay(t, into); !slices.Equal(got, want) {
				t.Errorf("it died at write %d (after it: %v): a reader sees %d events, want %d", n, after, len(got), len(want))
			}
			c, err := Compact(t.Context(), into, "local", oldDay, settled, nil)
			if err != nil || c.Small != 6 || c.Objects != 2 || c.Events != len(want) {
				t.Errorf("the next try: %+v, %v", c, err)
			}
			got, objects := readDay(t, into)
			if !slices.Equal(got, want) || objects != 2 {
				t.Errorf("it died at write %d (after it: %v): after the next try a reader sees %d events in %d objects, want %d in 2", n, after, len(got), objects, len(want))
			}
			folder, _ := into.List(t.Context(), "compacted/")
			if len(folder) != 2 {
				t.Errorf("the folder that engines read holds %v", folder)
			}
		}
	}
}

// Two compact a day at once, of which one has seen an object that the other has not: one plan stands, and what it does not know is read
// from where it is.
func TestObjectThatComesWhileADayIsCompactedIsReadBesideIt(t *testing.T) {
	into, want := archiveOf(t)
	small, _ := into.List(t.Context(), "audit/")
	late := small[5]
	body := into[late]
	delete(into, late)
	if _, err := settlePlan(t.Context(), into, "local", oldDay, small[:5]); err != nil {
		t.Fatal(err)
	}
	into[late] = body
	for range 2 {
		c, err := Compact(t.Context(), into, "local", oldDay, settled, nil)
		if err != nil || !slices.Equal(c.Late, []string{late}) || c.Events != len(want)-4 {
			t.Errorf("%+v, %v", c, err)
		}
	}
	if got, objects := readDay(t, into); !slices.Equal(got, want) || objects != 3 {
		t.Errorf("a reader sees %d events in %d objects, want %d", len(got), objects, len(want))
	}
	if until, err := CompactedUntil(t.Context(), into, "local", oldDay.AddDate(0, 0, -1), oldDay.AddDate(0, 0, 1)); err != nil || !until.Equal(oldDay.AddDate(0, 0, -1)) {
		t.Errorf("engines that read the compacted day would miss it: the border is %s, %v", until, err)
	}
}

// newer is a row as a later release may write it.
type newer struct {
	EventID string `parquet:"event_id,optional"`
	Mood    string `parquet:"mood,optional"`
}

func TestColumnOfALaterReleaseIsNotDropped(t *testing.T) {
	into := objects{}
	var out bytes.Buffer
	w := parquet.NewGenericWriter[newer](&out)
	if _, err := w.Write([]newer{{"exe_1", "good"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	into[rawDay("local", oldDay)+"hour=00/log-00000-00000000000000000000.parquet"] = out.Bytes()
	if _, err := Compact(t.Context(), into, "local", oldDay, settled, nil); err == nil || !strings.Contains(err.Error(), "mood") {
		t.Errorf("it was compacted: %v", err)
	}
}

func TestDayIsCompactedOnlyWhenNothingMoreCanCome(t *testing.T) {
	into, want := archiveOf(t)
	if _, err := Compact(t.Context(), into, "local", oldDay, settled.Add(-time.Second), nil); !errors.Is(err, ErrNotSettled) {
		t.Errorf("too early: %v", err)
	}
	if got, objects := readDay(t, into); !slices.Equal(got, want) || objects != 6 {
		t.Errorf("a reader sees %d events in %d objects", len(got), objects)
	}
	for name := range into {
		if !strings.HasPrefix(name, "audit/") {
			t.Errorf("there is %s", name)
		}
	}
}

func TestBorderStopsAtTheFirstDayThatIsNotCompacted(t *testing.T) {
	into, _ := archiveOf(t)
	until := func() string {
		t.Helper()
		at, err := CompactedUntil(t.Context(), into, "local", oldDay.AddDate(0, 0, -2), oldDay.AddDate(0, 0, 3))
		if err != nil {
			t.Fatal(err)
		}
		return at.Format(dayForm)
	}
	if got := until(); got != "2029-12-31" { // days without objects need none
		t.Errorf("before: %s", got)
	}
	if _, err := Compact(t.Context(), into, "local", oldDay, settled, nil); err != nil {
		t.Fatal(err)
	}
	if got := until(); got != "2030-01-04" {
		t.Errorf("after: %s", got)
	}
}
