package archivesql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/archive"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

// Report is what [Verify] found.
type Report struct {
	Objects, Events int
	// Compacted is how many objects compaction has made of them.
	Compacted int
	// Repeated counts the events that the log had more than once, which a crash causes: every query counts them once.
	Repeated int
	// Faults are sentences, at most [MaxFaults].
	Faults []string
}

// MaxFaults bounds the faults of a report.
const MaxFaults = 1000

func (r *Report) add(form string, args ...any) {
	if len(r.Faults) < MaxFaults {
		r.Faults = append(r.Faults, fmt.Sprintf(form, args...))
	}
}

// objectName is what an object's name says: where in the log it begins.
type objectName struct {
	name, log string
	partition int64
	first     int64
}

func parseName(name string) (objectName, error) {
	base, ok := strings.CutSuffix(path.Base(name), ".parquet")
	base, _, _ = strings.Cut(base, ".") // .2 and so on: further objects of one place
	parts := strings.Split(base, "-")
	if !ok || len(parts) < 3 {
		return objectName{}, errors.New("the name is not <log id>-<partition>-<offset>.parquet")
	}
	partition, err := strconv.ParseInt(parts[len(parts)-2], 10, 64)
	first, errFirst := strconv.ParseInt(parts[len(parts)-1], 10, 64)
	return objectName{name, strings.Join(parts[:len(parts)-2], "-"), partition, first}, errors.Join(err, errFirst)
}

// Verify reads every object of a range and reports what breaks the promise of the archive: an object that cannot be read, or is not
// what its name says; a record that is there twice; a gap between two objects of one log partition. A record that was lost before the
// first object of the range, or after the last, cannot be missed. Of compacted days, also a compacted object that does not hold exactly the
// events of those that it was made of.
func Verify(ctx context.Context, a archive.Archive, r Range, progress func(done, all int)) (Report, error) {
	if err := r.Validate(); err != nil {
		return Report{}, err
	}
	var report Report
	names, err := r.small(ctx, a, &report)
	if err != nil {
		return Report{}, err
	}
	var objects []objectName
	for _, name := range names {
		o, err := parseName(name)
		if err != nil {
			report.add("%s: %v", name, err)
			continue
		}
		objects = append(objects, o)
	}
	slices.SortFunc(objects, func(a, b objectName) int {
		return cmp.Or(cmp.Compare(a.log, b.log), cmp.Compare(a.partition, b.partition), cmp.Compare(a.first, b.first), cmp.Compare(a.name, b.name))
	})
	next, seen := int64(-1), map[string]int64{} // of the log partition that is read: the next offset, and the events by id
	for i, o := range objects {
		if i == 0 || o.log != objects[i-1].log || o.partition != objects[i-1].partition {
			next = -1
			clear(seen)
		}
		if next >= 0 && o.first > next {
			report.add("%s: records %d to %d of partition %d are missing before it", o.name, next, o.first-1, o.partition)
		}
		after, err := verifyObject(ctx, a, o, seen, &report)
		if err != nil {
			return report, err
		}
		next = max(next, after) // a log that lost its end gives offsets to other records: objects may overlap
		if progress != nil {
			progress(i+1, len(objects))
		}
	}
	return report, nil
}

// small returns the names of the range's objects as they were put, after it has held those that were compacted against them.
func (r Range) small(ctx context.Context, a archive.Archive, report *Report) (names []string, err error) {
	for day := r.From; !day.After(r.To); day = day.AddDate(0, 0, 1) {
		of, err := auditwriter.RawObjects(ctx, a, r.Region, day)
		if err != nil {
			return nil, err
		}
		names = append(names, of...)
		n, faults, err := auditwriter.CheckCompacted(ctx, a, r.Region, day)
		if err != nil {
			return nil, err
		}
		report.Compacted += n
		for _, fault := range faults {
			report.add("%s", fault)
		}
	}
	return names, nil
}

// verifyObject returns the offset after the object's last record.
func verifyObject(ctx context.Context, a archive.Archive, name objectName, seen map[string]int64, report *Report) (next int64, err error) {
	o, err := a.Open(ctx, name.name)
	if err != nil {
		return next, err // the archive does not answer
	}
	report.Objects++
	hour, rows := PartitionOf(name.name, "dt")+" "+PartitionOf(name.name, "hour"), 0
	err = auditwriter.Scan(o, []string{"log_partition", "log_offset", "event_id", "appended_at"}, func(v []any) error {
		partition, _ := v[0].(int64)
		offset, _ := v[1].(int64)
		id, _ := v[2].(string)
		at, _ := v[3].(time.Time)
		switch {
		case partition != name.partition:
			return fmt.Errorf("it holds a record of partition %d", partition)
		case rows == 0 && offset != name.first:
			return fmt.Errorf("it begins at offset %d", offset)
		case rows > 0 && offset != next:
			return fmt.Errorf("record %d follows record %d", offset, next-1)
		case id == "":
			return fmt.Errorf("record %d has no event id", offset)
		case at.Format("2006-01-02 15") != hour:
			return fmt.Errorf("record %d was appended at %s, in another hour", offset, at.Format(time.RFC3339))
		}
		if before, ok := seen[id]; ok && before == offset {
			return fmt.Errorf("record %d is there twice", offset)
		} else if ok {
			report.Repeated++
		}
		seen[id] = offset
		rows, next = rows+1, offset+1
		return nil
	})
	report.Events += rows
	if err := errors.Join(err, o.Close()); err != nil {
		report.add("%s: %v", name.name, err)
	}
	return next, nil
}
