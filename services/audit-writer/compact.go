package auditwriter

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/minutehand/minutehand/libs/archive"
)

const (
	// SettledAfter is how long after its end a day is compacted at the earliest: what is still written into it then is written by an
	// audit-writer that was away. Kafka keeps records for seven days, and with them a segment's earlier ones, which are up to seven days older.
	SettledAfter = 15 * 24 * time.Hour
	// groupBytes is about how much of small objects goes into one, and groupObjects how many of them at most.
	groupBytes, groupObjects = 64 << 20, 5000
	// dayForm is how a day is written in names.
	dayForm = "2006-01-02"
)

// ErrNotSettled means: a day is too young to be compacted.
var ErrNotSettled = fmt.Errorf("a day is compacted %d days after its end at the earliest: until then late events may come", SettledAfter/(24*time.Hour))

// plan says which objects a compacted day consists of, and of what each is made. The first plan that is put for a day stands, and
// whoever compacts the day carries it out: so objects of two plans never lie side by side.
type plan struct {
	Objects []planned `json:"objects"`
}

type planned struct {
	Name    string   `json:"name"`
	Sources []string `json:"sources"`
}

// Compaction is what a compacted day consists of.
type Compaction struct {
	// Small is how many objects it had, Objects how many it has, Events how many these hold.
	Small, Objects, Events int
	// Late are small objects that came after the plan was made.
	Late []string
}

// done is what the last object of a compaction says. Once it is there, the day is read from its compacted objects.
type done struct {
	Events int `json:"events"`
}

func rawDay(region string, day time.Time) string {
	return "audit/region=" + region + "/dt=" + day.Format(dayForm) + "/"
}

func compactedDay(region string, day time.Time) string {
	return "compacted/region=" + region + "/dt=" + day.Format(dayForm) + "/"
}

func planOf(region string, day time.Time, what string) string {
	return "compaction/region=" + region + "/dt=" + day.Format(dayForm) + "/" + what + ".json"
}

// DayObjects returns the names of the objects that hold a day: the small ones, or, from the moment at which its compaction was done, the
// compacted ones and what came late. Never both, and nothing twice.
func DayObjects(ctx context.Context, a archive.Archive, region string, day time.Time) ([]string, error) {
	small, err := a.List(ctx, rawDay(region, day))
	if err != nil {
		return nil, err
	}
	var d done
	p := plan{}
	if there, err := get(ctx, a, planOf(region, day, "done"), &d); err != nil || !there {
		return small, err
	}
	if there, err := get(ctx, a, planOf(region, day, "plan"), &p); err != nil || !there {
		return nil, errors.Join(err, fmt.Errorf("%s is missing", planOf(region, day, "plan")))
	}
	names := p.late(small)
	for _, o := range p.Objects {
		names = append(names, o.Name)
	}
	return names, nil
}

// late returns those of a day's small objects that the plan does not know.
func (p *plan) late(small []string) (names []string) {
	known := map[string]bool{}
	for _, o := range p.Objects {
		for _, s := range o.Sources {
			known[s] = true
		}
	}
	for _, name := range small {
		if !known[name] {
			names = append(names, name)
		}
	}
	return names
}

// Compact merges the small objects of a day into few, exactly once: each event of the small ones is in one compacted object, whoever
// compacts the day, however often, and wherever that stops. The small ones stay.
//
// First the plan is put, if there is none; then each of its objects, if it is not there; then the mark that it is done. A crash before
// the mark leaves objects that no reader looks at, and the next try goes on with the same plan. Two at once put the same objects.
func Compact(ctx context.Context, a archive.Archive, region string, day, now time.Time, progress func(ready, all int)) (c Compaction, err error) {
	if now.Before(day.Add(24*time.Hour + SettledAfter)) {
		return c, ErrNotSettled
	}
	small, err := a.List(ctx, rawDay(region, day))
	if err != nil || len(small) == 0 {
		return c, err
	}
	p, err := settlePlan(ctx, a, region, day, small)
	if err != nil {
		return c, err
	}
	c = Compaction{Objects: len(p.Objects), Late: p.late(small)}
	for _, o := range p.Objects {
		c.Small += len(o.Sources)
	}
	var d done
	if there, err := get(ctx, a, planOf(region, day, "done"), &d); err != nil || there {
		c.Events = d.Events
		return c, err
	}
	for i, o := range p.Objects {
		events, err := merge(ctx, a, o)
		if err != nil {
			return c, fmt.Errorf("%s: %w", o.Name, err)
		}
		c.Events += events
		if progress != nil {
			progress(i+1, len(p.Objects))
		}
	}
	return c, put(ctx, a, planOf(region, day, "done"), done{c.Events})
}

// settlePlan returns the plan that stands for a day, after it has put one if there was none.
func settlePlan(ctx context.Context, a archive.Archive, region string, day time.Time, small []string) (p plan, err error) {
	name := planOf(region, day, "plan")
	if there, err := get(ctx, a, name, &p); err != nil || there {
		return p, err
	}
	slices.SortFunc(small, func(a, b string) int { return cmp.Or(cmp.Compare(path.Dir(a), path.Dir(b)), cmp.Compare(a, b)) })
	size, n := int64(0), 0
	for i, source := range small {
		o, err := a.Open(ctx, source)
		if err != nil {
			return p, err
		}
		bytes := o.Size()
		if err := o.Close(); err != nil {
			return p, err
		}
		hour := path.Base(path.Dir(source))
		newHour := i == 0 || hour != path.Base(path.Dir(small[i-1]))
		if newHour {
			n = 0
		}
		last := len(p.Objects) - 1
		if newHour || size+bytes > groupBytes || len(p.Objects[last].Sources) == groupObjects {
			p.Objects = append(p.Objects, planned{Name: fmt.Sprintf("%s%s/%05d.parquet", compactedDay(region, day), hour, n)})
			size, last = 0, last+1
			n++
		}
		p.Objects[last].Sources = append(p.Objects[last].Sources, source)
		size += bytes
	}
	if err := put(ctx, a, name, p); err != nil {
		return p, err
	}
	p = plan{} // another may have been faster, with another list
	_, err = get(ctx, a, name, &p)
	return p, err
}

// merge puts an object of a plan, unless it is there, and returns how many events it holds.
func merge(ctx context.Context, a archive.Archive, o planned) (events int, err error) {
	if there, err := a.Open(ctx, o.Name); err == nil {
		f, err := parquet.OpenFile(there, there.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
		if err == nil {
			events = int(f.NumRows())
		}
		return events, errors.Join(err, there.Close())
	} else if !errors.Is(err, archive.ErrNotFound) {
		return 0, err
	}
	var out bytes.Buffer
	w := parquet.NewGenericWriter[line](&out, parquet.Compression(zstdCodec), parquet.PageBufferSize(pageBytes), parquet.DataPageVersion(1),
		parquet.CreatedBy("minutehand", "", ""))
	for _, source := range o.Sources {
		n, err := copyLines(ctx, a, source, w)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", source, errors.Join(err, w.Close()))
		}
		events += n
	}
	if err := w.Close(); err != nil {
		return 0, err
	}
	if err := a.PutIfAbsent(ctx, o.Name, out.Bytes()); err != nil && !errors.Is(err, archive.ErrExists) {
		return 0, err
	}
	return events, nil
}

// copyLines adds the rows of an object. A column that it does not have is null.
func copyLines(ctx context.Context, a archive.Archive, name string, w *parquet.GenericWriter[line]) (n int, err error) {
	text, err := whole(ctx, a, name) // a read of each column would be a request of its own
	if err != nil {
		return 0, err
	}
	f, err := parquet.OpenFile(bytes.NewReader(text), int64(len(text)), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return 0, err
	}
	known := parquet.SchemaOf(line{})
	for _, column := range f.Schema().Columns() {
		if _, ok := known.Lookup(column...); !ok {
			return 0, fmt.Errorf("it has the column %s, which a later release writes; compact it with that release", strings.Join(column, "."))
		}
	}
	r := parquet.NewGenericReader[line](f)
	defer func() { err = errors.Join(err, r.Close()) }()
	lines := make([]line, linesAtOnce)
	for {
		clear(lines)
		read, err := r.Read(lines)
		if writing := writeLines(w, lines[:read]); writing != nil {
			return n, writing
		}
		n += read
		if errors.Is(err, io.EOF) {
			if int64(n) != f.NumRows() {
				return n, io.ErrUnexpectedEOF
			}
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// get reads a small object in JSON, and reports whether it is there.
func get(ctx context.Context, a archive.Archive, name string, into any) (there bool, err error) {
	text, err := whole(ctx, a, name)
	if errors.Is(err, archive.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return true, nil
}

// whole returns the bytes of an object.
func whole(ctx context.Context, a archive.Archive, name string) (text []byte, err error) {
	o, err := a.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	text = make([]byte, o.Size())
	if _, err = o.ReadAt(text, 0); errors.Is(err, io.EOF) {
		err = nil
	}
	if err = errors.Join(err, o.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, nil
}

// put puts a small object in JSON, unless it is there.
func put(ctx context.Context, a archive.Archive, name string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if err = a.PutIfAbsent(ctx, name, text); errors.Is(err, archive.ErrExists) {
		return nil
	}
	return err
}

// CompactedUntil returns the last day up to which, from a first day on, every day that has objects is compacted and nothing came late, so
// that a table of compacted objects may stand for all of them; zero if the first day is not.
func CompactedUntil(ctx context.Context, a archive.Archive, region string, from, to time.Time) (until time.Time, err error) {
	for day := from; !day.After(to); day = day.AddDate(0, 0, 1) {
		var d done
		there, err := get(ctx, a, planOf(region, day, "done"), &d)
		if err != nil {
			return until, err
		}
		small, err := a.List(ctx, rawDay(region, day))
		if err != nil {
			return until, err
		}
		p := plan{}
		if there {
			if _, err := get(ctx, a, planOf(region, day, "plan"), &p); err != nil {
				return until, err
			}
		}
		if len(p.late(small)) > 0 {
			return until, nil
		}
		until = day
	}
	return until, nil
}

// CheckCompacted reads the compacted objects of a day, if its compaction is done, and reports as faults what does not hold exactly the
// events of its sources, in their order. Sources that are not there any more cannot be compared with.
func CheckCompacted(ctx context.Context, a archive.Archive, region string, day time.Time) (objects int, faults []string, err error) {
	var d done
	if there, err := get(ctx, a, planOf(region, day, "done"), &d); err != nil || !there {
		return 0, nil, err
	}
	var p plan
	if there, err := get(ctx, a, planOf(region, day, "plan"), &p); err != nil || !there {
		return 0, []string{planOf(region, day, "plan") + ": it is missing"}, err
	}
	small, err := a.List(ctx, rawDay(region, day))
	if err != nil {
		return 0, nil, err
	}
	for _, name := range p.late(small) {
		faults = append(faults, name+": it came after its day was compacted: engines that read the compacted day miss it")
	}
	for _, o := range p.Objects {
		objects++
		got, err := eventsOf(ctx, a, o.Name)
		if err != nil {
			faults = append(faults, o.Name+": "+err.Error())
			continue
		}
		want, err := eventsOf(ctx, a, o.Sources...)
		if errors.Is(err, archive.ErrNotFound) {
			continue
		}
		if err != nil {
			faults = append(faults, err.Error())
		} else if got != want {
			faults = append(faults, o.Name+": it does not hold exactly the events of the objects that it was made of")
		}
	}
	return objects, faults, nil
}

// eventsOf returns what is the same only for the same events in the same order.
func eventsOf(ctx context.Context, a archive.Archive, names ...string) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, name := range names {
		o, err := a.Open(ctx, name)
		if err != nil {
			return sum, err
		}
		err = Scan(o, []string{"event_id", "log_id", "log_partition", "log_offset"}, func(v []any) error {
			_, err := fmt.Fprintln(h, v...)
			return err
		})
		if err := errors.Join(err, o.Close()); err != nil {
			return sum, fmt.Errorf("%s: %w", name, err)
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// RawObjects returns the names of the objects of a day as audit-writers put them.
func RawObjects(ctx context.Context, a archive.Archive, region string, day time.Time) ([]string, error) {
	return a.List(ctx, rawDay(region, day))
}
