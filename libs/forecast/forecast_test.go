package forecast

import (
	"math/rand/v2"
	"testing"
	"time"
)

var asOf = time.Date(2026, 3, 1, 9, 0, 30, 0, time.UTC)

const from = 29_538_541

func TestAllOfThePartitionsLeaveNoError(t *testing.T) {
	table := NewTable(from)
	table.Add(from, 3)
	table.Add(from+59, 1)
	table.Add(from+59, 1)
	table.Add(from-1, 7)
	table.Add(from+Minutes, 7)
	f := table.Estimate(asOf, 256, 256)
	if planned, err := f.Sum(from, from+60); planned != 5 || err != 0 {
		t.Errorf("planned %d, error %d; want 5 without an error", planned, err)
	}
	if planned, _ := f.Sum(from-60, from+2*Minutes); planned != 5 {
		t.Errorf("planned %d; what lies outside of the day was counted", planned)
	}
	if !f.Exact() {
		t.Error("not said to be exact")
	}
}

// TestTheErrorHoldsAsOftenAsItIsStated draws samples of installations whose numbers are known.
func TestTheErrorHoldsAsOftenAsItIsStated(t *testing.T) {
	const partitions = 256
	for name, c := range map[string]struct{ jobs, fires, read int }{
		"hardly a job in a minute":          {jobs: 300, fires: 1, read: 20},
		"many jobs":                         {jobs: 200_000, fires: 1, read: 13},
		"one partition":                     {jobs: 200_000, fires: 1, read: 1},
		"jobs with sixty fires in a minute": {jobs: 2_000, fires: 60, read: 60},
		"nearly all":                        {jobs: 5_000, fires: 1, read: 250},
	} {
		t.Run(name, func(t *testing.T) {
			dice := rand.New(rand.NewPCG(1, 2))
			table := NewTable(from)
			var truth [Minutes]int
			for range c.jobs {
				minute, partition := dice.IntN(Minutes), dice.IntN(partitions)
				truth[minute] += c.fires
				if partition < c.read {
					table.Add(from+int64(minute), c.fires)
				}
			}
			f := table.Estimate(asOf, c.read, partitions)
			within, planned := 0, 0
			for i := range truth {
				planned += f.Planned[i]
				if d := truth[i] - f.Planned[i]; max(d, -d) <= f.Error[i] {
					within++
				}
			}
			if within < Minutes*94/100 {
				t.Errorf("%d of %d minutes lie within the error that is stated", within, Minutes)
			}
			if d := planned - c.jobs*c.fires; c.jobs > 1000 && max(d, -d) > c.jobs*c.fires/5 {
				t.Errorf("%d planned in all, %d are right", planned, c.jobs*c.fires)
			}
		})
	}
}

func TestWhatIsStoredIsRead(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 4))
	f := Forecast{AsOf: asOf, From: from, Read: 13, Of: 256, Others: true}
	for i := range f.Planned {
		f.Planned[i], f.Error[i] = dice.IntN(1<<30), dice.IntN(1000)
	}
	text := f.encode()
	if got, ok := decode(text); !ok || *got != f {
		t.Error("read back is not what was stored")
	}
	for _, cut := range []int{0, 1, 5, len(text) / 2, len(text) - 1} {
		if _, ok := decode(text[:cut]); ok {
			t.Errorf("the first %d bytes were taken for a forecast", cut)
		}
	}
}
