package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	fake "github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/loadtest/e2e/world"
	platform "github.com/minutehand/minutehand/services/all-in-one"
)

// TestAForecastFromASampleIsWhatFires registers jobs of every kind, makes a forecast from a sample of them, and holds it against the calls that
// targets receive in the two hours after it.
func TestAForecastFromASampleIsWhatFires(t *testing.T) {
	t.Parallel()
	const atOne = 500
	jobs, hours := sized(2_000, 200_000), sized(1, 2)
	read := sized(60, 15) // rows, for a hundred jobs; each has two, as its creation has one
	fake.Test(t, func(t *testing.T) {
		w := world.New(t)
		w.Configure = func(cfg *platform.Config) {
			calm(cfg)
			cfg.Partitions = sized(16, 32)
			cfg.Loader.Forecast.Rows = jobs * read / 100
		}
		w.Start()
		dice := rand.New(rand.NewPCG(1, 2))
		began := time.Now()
		for range jobs / atOne {
			list := make([]any, atOne)
			for n := range list {
				list[n] = kind(dice, began)
			}
			answer := w.Must(http.StatusOK, http.MethodPost, "/jobs:batch", map[string]any{"jobs": list})
			results := answer["results"].([]any)
			for n, r := range results {
				id := r.(map[string]any)["job"].(map[string]any)["job_id"].(string)
				if n%50 == 0 { // some of them will not fire
					w.Must(http.StatusOK, http.MethodPost, "/jobs/"+id+"/"+[]string{"pause", "cancel"}[n/50%2], nil)
				}
			}
		}
		time.Sleep(2 * time.Minute)
		answer := w.Must(http.StatusOK, http.MethodGet, "/forecast", nil)
		from := began.Add(5 * time.Minute)
		world.Until(from.Add(time.Duration(hours)*time.Hour + time.Minute))
		fired := map[time.Time]int{}
		for _, c := range w.Targets.Calls() {
			fired[c.ScheduledFor.UTC().Truncate(time.Minute)]++
		}
		share := answer["share"].(float64)
		if share < 0.03 || share > 0.7 {
			t.Errorf("%.3f of the jobs were looked at", share)
		}
		within, off, all, planned, beyond := 0, 0, 0, 0, 0
		for _, x := range answer["items"].([]any) {
			item := x.(map[string]any)
			at, err := time.Parse(time.RFC3339, item["at"].(string))
			if err != nil {
				t.Fatal(err)
			}
			if at.Before(from) || !at.Before(from.Add(time.Duration(hours)*time.Hour)) {
				continue
			}
			n, e := int(item["planned"].(float64)), int(item["error"].(float64))
			d := max(n-fired[at.UTC()], fired[at.UTC()]-n)
			all, planned, off = all+fired[at.UTC()], planned+n, off+d
			if d <= e {
				within++
			}
			if d > 3*e {
				beyond++
			}
		}
		t.Logf("%d jobs, %.1f %% of them looked at: %d fires planned in %d minutes, %d fired; %d minutes within the error that is stated, %d beyond three times that; off by %d in all",
			jobs, 100*share, planned, hours*60, all, within, beyond, off)
		if within < hours*60*85/100 || beyond > 0 {
			t.Errorf("%d of %d minutes lie within the error that is stated, and %d beyond three times that", within, hours*60, beyond)
		}
		// The ids are random, and so is the sample: the bounds are beyond five standard deviations of it.
		if d := max(planned-all, all-planned); d > all*sized(60, 10)/100 {
			t.Errorf("%d fires were planned, and there were %d, which is beyond what a sample may be off by", planned, all)
		}
		w.Stop()
	})
}

// kind returns a job of one of the kinds that an installation has.
func kind(dice *rand.Rand, now time.Time) map[string]any {
	members := map[string]any{}
	switch roll := dice.IntN(100); {
	case roll < 50:
		members["type"], members["run_at"] = "one_shot", now.Add(time.Duration(600+dice.IntN(3*3600))*time.Second).Format(time.RFC3339)
	case roll < 70: // many at the full hour
		members["type"], members["cron_expr"] = "cron", fmt.Sprintf("0 %d * * *", dice.IntN(6))
	case roll < 80:
		members["type"], members["cron_expr"] = "cron", fmt.Sprintf("%d * * * *", dice.IntN(60))
	case roll < 90:
		members["type"], members["cron_expr"], members["spread"], members["spread_within"] = "cron", "0 * * * *", "auto", "20m"
	case roll < 99:
		members["type"], members["every"] = "interval", "30m"
	default:
		members["type"], members["every"], members["max_occurrences"] = "interval", "2m", 20
	}
	return world.Job("planned", "target", members)
}
