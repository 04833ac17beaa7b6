package schedule

import (
	"archive/zip"
	"bytes"
	_ "embed" // for the two files below
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"
)

// The zones of Go's own distribution, so that an instant does not depend on what a machine has installed.
//
//go:embed tzdata/zoneinfo.zip
var zoneinfo []byte

// The tzdata release from which zoneinfo.zip was made: the DATA line of the update.bash beside it in Go's source.
//
//go:embed tzdata/VERSION
var tzdataVersion string

// TZDataVersion returns the release of the embedded time zone data, such as 2025c.
func TZDataVersion() string { return strings.TrimSpace(tzdataVersion) }

// zoneDB is the opened archive and the zones read so far. Only names found in the archive are cached, so that
// the cache is no larger than the archive.
type zoneDB struct {
	files map[string]*zip.File
	zones sync.Map // string to *zone
	err   error
}

var openZones = sync.OnceValue(func() *zoneDB {
	archive, err := zip.NewReader(bytes.NewReader(zoneinfo), int64(len(zoneinfo)))
	if err != nil {
		return &zoneDB{err: fmt.Errorf("open embedded tzdata: %w", err)}
	}
	db := &zoneDB{files: make(map[string]*zip.File, len(archive.File))}
	for _, file := range archive.File {
		if !strings.HasSuffix(file.Name, "/") {
			db.files[file.Name] = file
		}
	}
	return db
})

// LoadLocation returns a zone of the embedded tzdata by its exact IANA name, never one of the machine. "Local", the empty name,
// paths and names in the wrong case are an *Error.
func LoadLocation(name string) (*time.Location, error) {
	z, err := loadZone(name)
	if err != nil {
		return nil, err
	}
	return z.loc, nil
}

func loadZone(name string) (*zone, error) {
	db := openZones()
	if db.err != nil {
		return nil, db.err
	}
	if z, ok := db.zones.Load(name); ok {
		return z.(*zone), nil
	}
	file, ok := db.files[name]
	if !ok {
		return nil, &Error{"timezone", CodeInvalid, "Use an IANA time zone name such as Europe/Berlin, or UTC."}
	}
	loc, err := readLocation(name, file)
	if err != nil {
		return nil, fmt.Errorf("read embedded tzdata: %w", err)
	}
	z, _ := db.zones.LoadOrStore(name, newZone(loc))
	return z.(*zone), nil
}

func readLocation(name string, file *zip.File) (*time.Location, error) {
	if name == "UTC" {
		return time.UTC, nil // so that it compares equal to time.UTC
	}
	r, err := file.Open()
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return time.LoadLocationFromTZData(name, data)
}

// zone is a location as a table of segments, the longest spans of real time with one offset from UTC, for the years
// 1970 to 2199. A table answers what time.Location does not: the next and the previous jump, exactly, and in about ten
// nanoseconds also for years beyond the recorded transitions.
type zone struct {
	loc    *time.Location
	starts []int64 // Unix second at which each segment begins; the first begins before all time
	offs   []int64 // seconds east of UTC
}

// newZone walks loc from jump to jump.
func newZone(loc *time.Location) *zone {
	const day = 24 * 60 * 60
	z := &zone{loc: loc}
	at := int64(minSec - 2*day)
	z.starts, z.offs = []int64{math.MinInt64 / 4}, []int64{offsetAt(loc, at)}
	for at < maxSec+2*day {
		_, end := time.Unix(at, 0).In(loc).ZoneBounds()
		if end.IsZero() {
			break
		}
		// Beyond the recorded transitions ZoneBounds also stops at the end of a year, and on 31 December of a leap
		// year, at an instant that has passed. No zone jumps on that day then, so a step of a day is safe.
		next := end.Unix()
		if next <= at {
			next = at + day
		}
		at = next
		if off := offsetAt(loc, at); off != z.offs[len(z.offs)-1] {
			z.starts, z.offs = append(z.starts, at), append(z.offs, off)
		}
	}
	return z
}

func offsetAt(loc *time.Location, sec int64) int64 {
	_, off := time.Unix(sec, 0).In(loc).Zone()
	return int64(off)
}

// segment returns the index of the segment that contains sec.
func (z *zone) segment(sec int64) int {
	lo, hi := 0, len(z.starts)
	for hi-lo > 1 {
		if mid := int(uint(lo+hi) >> 1); z.starts[mid] <= sec {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// end returns the second at which segment i ends and the next begins.
func (z *zone) end(i int) int64 {
	if i+1 < len(z.starts) {
		return z.starts[i+1]
	}
	return math.MaxInt64 / 4
}

// jump returns by how many seconds local time jumps forward at the start of segment i; negative in a fold.
func (z *zone) jump(i int) int64 {
	if i == 0 || i >= len(z.starts) {
		return 0
	}
	return z.offs[i] - z.offs[i-1]
}
