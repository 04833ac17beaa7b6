// Package forecast holds how many fires are planned for each minute of the next 24 hours, of the whole installation and of each tenant.
//
// A forecast counts the jobs of some partitions, chosen at random, and multiplies. A job's partition is a hash of its id, so the jobs of a
// partition are a fair sample of all jobs, and the error can be stated. If all partitions were read, there is none.
//
// It promises: a value is planned as things stood at AsOf. What follows other jobs, what retries will need, and what is held or skipped by an
// overlap policy cannot be known ahead and is not in it.
package forecast

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// Minutes is how many minutes a forecast covers.
const Minutes = 24 * 60

// MaxTenants bounds the tenants of which one pass keeps forecasts of their own.
const MaxTenants = 1000

// z is how many standard deviations the stated error is: in 95 of 100 minutes the number lies within it.
const z = 1.96

// Forecast is what is planned for the minutes from From on, in Unix minutes.
type Forecast struct {
	AsOf time.Time
	From int64
	// Read is how many of the Of partitions were read.
	Read, Of int
	// Others is set if there are tenants of which no forecast was kept, see MaxTenants.
	Others bool
	// Planned and Error are fires, one value for each minute.
	Planned, Error [Minutes]int
}

// MaxAge is how old a forecast may be that is shown. One is made every hour at least, if it can be.
const MaxAge = 6 * time.Hour

// Stale reports whether the forecast is too old to be shown.
func (f *Forecast) Stale(now time.Time) bool { return now.Sub(f.AsOf) > MaxAge }

// Exact reports whether everything was read.
func (f *Forecast) Exact() bool { return f.Read == f.Of }

// Sum returns what is planned in the minutes [from, to), and its error, as far as the forecast covers them. The errors of minutes are added
// up: those of a job that fires in several of them go the same way.
func (f *Forecast) Sum(from, to int64) (planned, err int) {
	for m := max(from, f.From); m < min(to, f.From+Minutes); m++ {
		planned += f.Planned[m-f.From]
		err += f.Error[m-f.From]
	}
	return planned, err
}

// Table counts what the jobs of the partitions that are read have planned.
type Table struct {
	from           int64
	count, squares [Minutes]float64
	// seen is how often something was added.
	seen int
}

// NewTable returns an empty table of the minutes from a Unix minute on.
func NewTable(from int64) *Table { return &Table{from: from} }

// Add counts n fires of one job in a minute. A minute that the table does not cover is left out. All fires of a job in a minute should be
// added together, because they are in the sample together.
func (t *Table) Add(minute int64, n int) {
	if i := minute - t.from; i >= 0 && i < Minutes {
		t.count[i] += float64(n)
		t.squares[i] += float64(n) * float64(n)
		t.seen++
	}
}

// Estimate returns the forecast that the table of read of all partitions yields.
//
// With the share s = read/of, each job is in the sample with probability s. If it has y fires in a minute, Σy/s estimates the number of fires
// without bias, with the variance (1-s)/s²·Σy² (Horvitz and Thompson). As in Wilson's interval, z² jobs with the mean square of y are added to
// what was seen, so that a minute in which nothing was seen is not said to be empty for certain.
func (t *Table) Estimate(asOf time.Time, read, of int) Forecast {
	f := Forecast{AsOf: asOf, From: t.from, Read: read, Of: of}
	if read == 0 {
		return f
	}
	s := float64(read) / float64(of)
	unseen := 0.0
	for _, squares := range t.squares {
		unseen += squares
	}
	unseen = z * z * max(unseen/float64(max(t.seen, 1)), 1)
	for i := range t.count {
		f.Planned[i] = int(math.Round(t.count[i] / s))
		f.Error[i] = int(math.Ceil(z * math.Sqrt((1-s)*(t.squares[i]+unseen)) / s))
	}
	return f
}

// ErrNone means that there is no forecast yet.
var ErrNone = errors.New("no forecast yet")

// Store keeps forecasts in lists of the cold store. Of two that are written for one scope the later stands.
type Store struct{ Lists jobstore.Lists }

const (
	listOfAll = "forecast"
	item      = "plan"
)

func listOf(tenant job.Tenant) string { return listOfAll + "/" + tenant.String() }

// Put stores the forecasts of tenants, and then that of all.
func (s Store) Put(ctx context.Context, all *Forecast, tenants map[job.Tenant]*Forecast) error {
	for tenant, f := range tenants {
		if err := s.Lists.PutItem(ctx, listOf(tenant), jobstore.Item{Name: item, Value: f.encode()}); err != nil {
			return fmt.Errorf("store the forecast of tenant %s: %w", tenant, err)
		}
	}
	if err := s.Lists.PutItem(ctx, listOfAll, jobstore.Item{Name: item, Value: all.encode()}); err != nil {
		return fmt.Errorf("store the forecast: %w", err)
	}
	return nil
}

// All returns the forecast of the whole installation; ErrNone if there is none yet.
func (s Store) All(ctx context.Context) (*Forecast, error) { return s.get(ctx, listOfAll) }

// keptFor is how old a tenant's forecast may be if the latest pass has kept none of it.
const keptFor = time.Hour

// Of returns the forecast of a tenant; ErrNone if there is none yet, or none of this tenant because there are more than MaxTenants.
func (s Store) Of(ctx context.Context, tenant job.Tenant) (*Forecast, error) {
	all, err := s.All(ctx)
	if err != nil {
		return nil, err
	}
	f, err := s.get(ctx, listOf(tenant))
	switch {
	case err == nil && (!f.AsOf.Before(all.AsOf) || all.Others && all.AsOf.Sub(f.AsOf) < keptFor):
		return f, nil
	case err != nil && !errors.Is(err, ErrNone):
		return nil, err
	case all.Others:
		return nil, ErrNone
	}
	none := NewTable(all.From).Estimate(all.AsOf, all.Read, all.Of) // the pass met no job of the tenant
	return &none, nil
}

// Forget removes the forecast of a tenant.
func (s Store) Forget(ctx context.Context, tenant job.Tenant) error {
	if err := s.Lists.RemoveList(ctx, listOf(tenant)); err != nil {
		return fmt.Errorf("remove the forecast of tenant %s: %w", tenant, err)
	}
	return nil
}

func (s Store) get(ctx context.Context, list string) (*Forecast, error) {
	items, err := s.Lists.Items(ctx, list, "", 1)
	if err != nil {
		return nil, fmt.Errorf("read the forecast: %w", err)
	}
	if len(items) == 0 {
		return nil, ErrNone
	}
	f, ok := decode(items[0].Value)
	if !ok {
		return nil, ErrNone // another release wrote it; the next pass of this one overwrites it
	}
	return f, nil
}

// format is the first number of what encode returns.
const format = 1

// encode returns the forecast as numbers of variable length: format, AsOf in milliseconds, From, Read, Of, Others, and then Planned and Error of
// each minute.
func (f *Forecast) encode() []byte {
	others := 0
	if f.Others {
		others = 1
	}
	text := make([]byte, 0, 4*Minutes)
	for _, n := range []int64{format, f.AsOf.UnixMilli(), f.From, int64(f.Read), int64(f.Of), int64(others)} {
		text = binary.AppendUvarint(text, uint64(n))
	}
	for i := range f.Planned {
		text = binary.AppendUvarint(text, uint64(f.Planned[i]))
		text = binary.AppendUvarint(text, uint64(f.Error[i]))
	}
	return text
}

func decode(text []byte) (f *Forecast, ok bool) {
	next := func() int64 {
		n, size := binary.Uvarint(text)
		ok = ok && size > 0 && n <= math.MaxInt64
		text = text[max(size, 0):]
		return int64(n)
	}
	ok = true
	f = &Forecast{}
	if next() != format {
		return nil, false
	}
	f.AsOf, f.From = time.UnixMilli(next()).UTC(), next()
	f.Read, f.Of, f.Others = int(next()), int(next()), next() == 1
	for i := range f.Planned {
		f.Planned[i], f.Error[i] = int(next()), int(next())
	}
	return f, ok
}
