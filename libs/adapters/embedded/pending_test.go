package embedded

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

// Two puts of a row meet in a batch, in a memtable, in tables, and in a compaction that holds only one of them.
func TestFirstOfTwoPutsStandsWhereverTheyMeet(t *testing.T) {
	dir := t.TempDir()
	db, err := Open(Options{Dir: dir, Partitions: 4})
	if err != nil {
		t.Fatal(err)
	}
	standing := crashEntry(1)
	put := func(after time.Duration) {
		t.Helper()
		e := standing
		e.WrittenAt = e.WrittenAt.Add(after)
		if err := NewPending(db).Put(t.Context(), []job.Entry{e, e}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string) {
		t.Helper()
		row, err := NewPending(db).Row(t.Context(), standing.Locator)
		if err != nil || !row.WrittenAt.Equal(standing.WrittenAt) {
			t.Errorf("%s: written at %v, want %v (%v)", when, row.WrittenAt, standing.WrittenAt, err)
		}
		rows, err := NewPending(db).Scan(t.Context(), standing.Partition, standing.Minute, nil, 10)
		if err != nil || len(rows) != 1 || !rows[0].WrittenAt.Equal(standing.WrittenAt) {
			t.Errorf("%s: the bucket holds %+v (%v)", when, rows, err)
		}
	}
	put(0)
	put(time.Second)
	check("in a memtable")
	for i, when := range []string{"in two tables", "in three tables"} {
		if err := db.pebble.Flush(); err != nil {
			t.Fatal(err)
		}
		put(time.Duration(i+2) * time.Second)
		check(when)
	}
	if err := db.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("compacted")
	put(time.Minute)
	check("in a memtable above a compacted table")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = Open(Options{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	check("opened again")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStoreOfTheFormatBeforeIsReadAndBecomesThisOne(t *testing.T) {
	dir := t.TempDir()
	db, err := Open(Options{Dir: dir, Partitions: 4})
	if err != nil {
		t.Fatal(err)
	}
	e := crashEntry(1)
	b := db.pebble.NewBatch()
	err = errors.Join(setNumber(b, metaKey("format"), FormatVersion-1), b.Set(cell(rowKey(e.Locator), cellEntry), wire.MarshalEntry(&e), nil),
		b.Commit(db.write), db.Close())
	if err != nil {
		t.Fatal(err)
	}
	if db, err = Open(Options{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	again := e
	again.WrittenAt = e.WrittenAt.Add(time.Second)
	if err := NewPending(db).Put(t.Context(), []job.Entry{again}); err != nil {
		t.Fatal(err)
	}
	row, err := NewPending(db).Row(t.Context(), e.Locator)
	if err != nil || !row.WrittenAt.Equal(e.WrittenAt) {
		t.Errorf("written at %v, want %v (%v)", row.WrittenAt, e.WrittenAt, err)
	}
	format, closer, err := db.pebble.Get(metaKey("format"))
	if err != nil || binary.BigEndian.Uint64(format) != FormatVersion {
		t.Errorf("the format is %x (%v)", format, err)
	}
	if err := errors.Join(closer.Close(), db.Close()); err != nil {
		t.Fatal(err)
	}
}
