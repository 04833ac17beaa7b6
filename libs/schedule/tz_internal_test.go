package schedule

import (
	"archive/zip"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func eachZone(t *testing.T, check func(t *testing.T, name string, z *zone)) {
	t.Helper()
	for _, file := range Embedded().files.(*zip.Reader).File {
		name := file.Name
		if strings.HasSuffix(name, "/") {
			continue
		}
		z, err := Embedded().load(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		check(t, name, z)
	}
}

func TestSegmentsAgreeWithTimeLocation(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	eachZone(t, func(t *testing.T, name string, z *zone) {
		at := func(sec int64) {
			if got, want := z.offs[z.segment(sec)], offsetAt(z.loc, sec); got != want {
				t.Errorf("%s at %v: offset %d, want %d", name, time.Unix(sec, 0).UTC(), got, want)
			}
		}
		for _, start := range z.starts[1:] {
			at(start - 1)
			at(start)
		}
		for range 200 {
			at(random.Int64N(maxSec))
		}
		for year := minYear; year <= maxYear; year += 3 { // both ends of years, where ZoneBounds is inexact
			newYear := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
			at(newYear)
			at(newYear + secondsPerDay)
			at(newYear + 364*secondsPerDay)
			at(newYear + 365*secondsPerDay - 1)
		}
	})
}

// The resolver's windows reach no further than into the neighbouring segment, if this holds.
func TestSegmentsAreLongerThanTheJumpsAtTheirEnds(t *testing.T) {
	eachZone(t, func(t *testing.T, name string, z *zone) {
		for i := 1; i+1 < len(z.starts); i++ {
			if length := z.end(i) - z.starts[i]; length <= max(z.jump(i), -z.jump(i))+max(z.jump(i+1), -z.jump(i+1)) {
				t.Errorf("%s: the segment from %v lasts %d s", name, time.Unix(z.starts[i], 0).UTC(), length)
			}
		}
	})
}

func TestLoadLocationReadsOnlyTheEmbeddedZones(t *testing.T) {
	for _, name := range []string{
		"", "Local", "local", "utc", "/etc/localtime", "../UTC", "Europe", "Europe/", "europe/berlin",
		"Europe\\Berlin", "Europe/Berlin\x00", "US/Nowhere", strings.Repeat("A", 2<<20),
	} {
		if loc, err := LoadLocation(name); err == nil {
			t.Errorf("LoadLocation(%.20q) = %v, want an error", name, loc)
		} else if fault := new(Error); !errors.As(err, &fault) || fault.Field != "timezone" || len(fault.Message) > 100 {
			t.Errorf("LoadLocation(%.20q): %v", name, err)
		}
	}
	first, err := LoadLocation("Europe/Berlin")
	if err != nil || first.String() != "Europe/Berlin" {
		t.Fatalf("LoadLocation(Europe/Berlin) = %v, %v", first, err)
	}
	if second, _ := LoadLocation("Europe/Berlin"); second != first {
		t.Error("the second LoadLocation did not come from the cache")
	}
	if utc, err := LoadLocation("UTC"); err != nil || utc != time.UTC {
		t.Errorf("LoadLocation(UTC) = %v, %v", utc, err)
	}
}

func TestTZDataVersionIsARelease(t *testing.T) {
	if v := TZDataVersion(); len(v) != 5 || v < "2025c" {
		t.Errorf("TZDataVersion() = %q", v)
	}
}

func TestCivilAgreesWithPackageTime(t *testing.T) {
	for at := time.Date(minYear, 1, 1, 0, 0, 0, 0, time.UTC); at.Year() <= maxYear; at = at.AddDate(0, 0, 1) {
		year, month, day := dateOf(int(at.Unix() / secondsPerDay))
		if year != at.Year() || month != int(at.Month()) || day != at.Day() {
			t.Fatalf("%v: dateOf = %d-%d-%d", at, year, month, day)
		}
		if n := dayNumber(year, month, day); int64(n) != at.Unix()/secondsPerDay || weekday(n) != int(at.Weekday()) {
			t.Fatalf("%v: dayNumber = %d, weekday %d", at, n, weekday(n))
		}
	}
}
