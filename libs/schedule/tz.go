package schedule

import (
	"archive/zip"
	"bytes"
	_ "embed" // for the two files below
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
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

// Zones are time zone data, and the zones read so far. Only names found in the data are cached, so that the cache is no larger than the data.
type Zones struct {
	files   fs.FS
	release string
	zones   sync.Map // string to *zone
}

// OpenZones opens time zone data: a folder as /usr/share/zoneinfo, or the zoneinfo.zip of a Go distribution. The release is read from the files
// that data may come with; without one it is unknown.
func OpenZones(path string) (*Zones, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open time zone data: %w", err)
	}
	z := &Zones{files: os.DirFS(path)}
	if !info.IsDir() {
		if info.Size() > maxZoneData {
			return nil, fmt.Errorf("open time zone data: %s is too large to be an archive of zones", path)
		}
		text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
		if err != nil {
			return nil, fmt.Errorf("open time zone data: %w", err)
		}
		if z.files, err = zip.NewReader(bytes.NewReader(text), int64(len(text))); err != nil {
			return nil, fmt.Errorf("open time zone data: %s is no folder and no zip: %w", path, err)
		}
	}
	z.release = releaseOf(z.files)
	if _, err := z.load("Europe/London"); err != nil {
		return nil, fmt.Errorf("open time zone data: %s has no zones: %w", path, err)
	}
	return z, nil
}

// Bounds of the files of time zone data, in bytes.
const maxZoneData, maxZone = 64 << 20, 1 << 20

// UnknownRelease stands for the release of data that names none.
const UnknownRelease = "unknown"

// releaseOf returns the release that time zone data says it is.
func releaseOf(files fs.FS) string {
	for _, name := range []string{"+VERSION", "VERSION", "version"} {
		if text, err := fs.ReadFile(files, name); err == nil && len(text) < 32 {
			return strings.TrimSpace(string(text))
		}
	}
	if text, err := fs.ReadFile(files, "tzdata.zi"); err == nil {
		if line, ok := strings.CutPrefix(strings.SplitN(string(text), "\n", 2)[0], "# version "); ok {
			return strings.TrimSpace(line)
		}
	}
	return UnknownRelease
}

// Release returns the release of the data, such as 2025c.
func (z *Zones) Release() string { return z.release }

// Embedded returns the data of Go's own distribution in this program.
var Embedded = sync.OnceValue(func() *Zones {
	archive, err := zip.NewReader(bytes.NewReader(zoneinfo), int64(len(zoneinfo)))
	if err != nil {
		panic(fmt.Sprintf("embedded tzdata: %v", err)) // the program was built wrongly
	}
	return &Zones{files: archive, release: strings.TrimSpace(tzdataVersion)}
})

// EmbeddedArchive returns the zoneinfo.zip in this program, with its release in a file VERSION.
func EmbeddedArchive() ([]byte, error) {
	archive, err := zip.NewReader(bytes.NewReader(zoneinfo), int64(len(zoneinfo)))
	if err != nil {
		return nil, fmt.Errorf("read embedded tzdata: %w", err)
	}
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, file := range archive.File {
		if err := w.Copy(file); err != nil {
			return nil, fmt.Errorf("copy embedded tzdata: %w", err)
		}
	}
	version, err := w.Create("VERSION")
	if err != nil {
		return nil, fmt.Errorf("copy embedded tzdata: %w", err)
	}
	if _, err := io.WriteString(version, tzdataVersion); err != nil {
		return nil, fmt.Errorf("copy embedded tzdata: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("copy embedded tzdata: %w", err)
	}
	return out.Bytes(), nil
}

// inForce is the data by which schedules are compiled; nil stands for Embedded.
var inForce atomic.Pointer[Zones]

// Use makes data the one by which schedules are compiled from now on. A process calls it once, before anything else.
func Use(z *Zones) { inForce.Store(z) }

func current() *Zones {
	if z := inForce.Load(); z != nil {
		return z
	}
	return Embedded()
}

// TZDataVersion returns the release of the data by which schedules are compiled, such as 2025c.
func TZDataVersion() string { return current().release }

// LoadLocation returns a zone by its exact IANA name, from the data by which schedules are compiled and never from the machine. "Local", the
// empty name, paths and names in the wrong case are an *Error.
func LoadLocation(name string) (*time.Location, error) {
	z, err := current().load(name)
	if err != nil {
		return nil, err
	}
	return z.loc, nil
}

func (z *Zones) load(name string) (*zone, error) {
	if known, ok := z.zones.Load(name); ok {
		return known.(*zone), nil
	}
	loc, err := z.read(name)
	if err != nil {
		return nil, err
	}
	fresh := newZone(loc)
	fresh.release = z.release
	known, _ := z.zones.LoadOrStore(name, fresh)
	return known.(*zone), nil
}

// zoneName is what the names of zones are made of.
var zoneName = regexp.MustCompile(`^[A-Za-z0-9_+/-]{1,64}$`)

func (z *Zones) read(name string) (*time.Location, error) {
	invalid := &Error{"timezone", CodeInvalid, "Use an IANA time zone name such as Europe/Berlin, or UTC."}
	if !zoneName.MatchString(name) || !fs.ValidPath(name) || name == "Local" {
		return nil, invalid
	}
	file, err := z.files.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, invalid
	}
	if err != nil {
		return nil, fmt.Errorf("read tzdata: %w", err)
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err == nil && (info.IsDir() || info.Size() > maxZone) {
		return nil, invalid
	}
	data, err := io.ReadAll(io.LimitReader(file, maxZone))
	if err != nil {
		return nil, fmt.Errorf("read tzdata: %w", err)
	}
	if name == "UTC" {
		return time.UTC, nil // so that it compares equal to time.UTC
	}
	loc, err := time.LoadLocationFromTZData(name, data)
	if err != nil {
		return nil, invalid // folders of zones have other files
	}
	return loc, nil
}

// zone is a location as a table of segments, the longest spans of real time with one offset from UTC, for the years
// 1970 to 2199. A table answers what time.Location does not: the next and the previous jump, exactly, and in about ten
// nanoseconds also for years beyond the recorded transitions.
type zone struct {
	loc     *time.Location
	release string
	starts  []int64 // Unix second at which each segment begins; the first begins before all time
	offs    []int64 // seconds east of UTC
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

// offset returns the seconds east of UTC at an instant.
func (z *zone) offset(at time.Time) int { return int(z.offs[z.segment(at.Unix())]) }

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
