package cassandra

import (
	"fmt"
	"testing"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

// Cassandra refuses a batch of 50 KiB over several partitions. It would be written again for ever, and hold up the history behind it.
func TestBatchesOverSeveralPartitionsStaySmall(t *testing.T) {
	var rows []gocql.BatchEntry
	for i, size := range []int{600, 600, 9000, 600, 4000, 4000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 60_000} {
		rows = append(rows, gocql.BatchEntry{Args: []any{fmt.Sprint(i), 7, make([]byte, size)}})
	}
	next := 0
	for _, b := range mixed(rows) {
		bytes := 0
		for _, row := range b {
			if row.Args[0] != fmt.Sprint(next) {
				t.Fatalf("row %s where %d should be", row.Args[0], next)
			}
			next++
			bytes += len(row.Args[2].([]byte))
		}
		if len(b) > 1 && bytes > 5<<10 || len(b) > 10 {
			t.Errorf("a batch of %d rows with %d bytes", len(b), bytes)
		}
	}
	if next != len(rows) {
		t.Errorf("%d of %d rows are in batches", next, len(rows))
	}
	if mixed(nil) != nil {
		t.Error("no rows make a batch")
	}
}
