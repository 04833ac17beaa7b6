//go:build servers

package cluster_test

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule/scheduletest"
)

// zoneData makes two folders of time zone data: in Berlin the clocks go an hour forward at one of two instants.
func zoneData(t *testing.T, changes ...time.Time) (folders []string) {
	t.Helper()
	archive, err := zip.OpenReader("../../libs/schedule/tzdata/zoneinfo.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = archive.Close() }()
	for n, change := range changes {
		dir := filepath.Join(t.TempDir(), "zones")
		berlin := scheduletest.Zone{Offset: time.Hour, Changes: []scheduletest.Change{{At: change, Offset: 2 * time.Hour}}}
		for _, err := range []error{
			os.CopyFS(dir, &archive.Reader), scheduletest.WriteZone(dir, "Europe/Berlin", berlin),
			os.WriteFile(filepath.Join(dir, "VERSION"), []byte(fmt.Sprint("release-", n)), 0o600),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		folders = append(folders, dir)
	}
	return folders
}

// planned is a job with the instants of its next occurrence: by the first time zone data, and by the other.
type planned struct {
	id       string
	at, then time.Time
}

// at reports whether a job's next occurrence waits at an instant, and at no other of a list.
func (f *platform) at(id string, at time.Time, others ...time.Time) bool {
	f.t.Helper()
	for _, other := range append(others, at) {
		a, err := f.ask(f.t.Context(), 0, http.MethodGet, "/executions/"+job.ScheduleExecutionID(id, other), nil)
		f.must(err)
		var x struct {
			State string `json:"state"`
		}
		if a.status == http.StatusOK {
			f.must(json.Unmarshal(a.body, &x))
		}
		if (x.State == "pending") != other.Equal(at) {
			f.t.Errorf("the execution of %s at %s is answered %d, %q", id, other.Format(time.RFC3339), a.status, x.State)
			return false
		}
	}
	return true
}

// The jobs are planned, and not called: their occurrences are hours ahead, and some of them half an hour, so that they are in Redis.
func TestPlanOfAnInstallationIsForecastAndFollowsTheTimeZoneData(t *testing.T) {
	f := newInstallation(t).processes()
	now := time.Now().UTC().Truncate(time.Minute)
	early, late := now.Add(10*time.Minute), now.Add(36*time.Hour)
	folders := zoneData(t, early, late)
	f.Variables = append(f.Variables, "MINUTEHAND_TZDATA="+folders[0])
	start := func() {
		for n := range 2 {
			f.restart("job-api", n)
			f.restart("bucket-loader", n)
		}
	}
	start()

	n := sized(300, 3000)
	local := func(at time.Time, ahead time.Duration) string { return at.Add(ahead).Format("4 15 2 1 *") }
	var jobs []map[string]any
	var want []planned
	add := func(at, then time.Time, expr, zone string) {
		jobs = append(jobs, map[string]any{
			"name": "planned", "type": "cron", "cron_expr": expr, "timezone": zone, "target": map[string]any{"kind": "http_webhook", "url": f.sink.url},
		})
		want = append(want, planned{at: at, then: then})
	}
	for i := range n {
		switch at := now.Add(time.Duration(2+i%20)*time.Hour + time.Duration(i%7)*time.Minute); i % 6 {
		case 0: // in Redis
			at = now.Add(30*time.Minute + time.Duration(i%7)*time.Minute)
			add(at, at.Add(time.Hour), local(at, 2*time.Hour), "Europe/Berlin")
		case 1, 2:
			add(at, at.Add(time.Hour), local(at, 2*time.Hour), "Europe/Berlin")
		case 3: // by both, the clocks have gone forward
			at = at.Add(48 * time.Hour)
			add(at, at, local(at, 2*time.Hour), "Europe/Berlin")
		case 4:
			add(at, at, local(at, 9*time.Hour), "Asia/Tokyo")
		default:
			add(at, at, local(at, 0), "UTC")
		}
	}
	for i, id := range f.register(jobs) {
		want[i].id = id
	}

	// Everything is read here, so a forecast is exact.
	fires := func(at func(p planned) time.Time) map[time.Time]int {
		of := map[time.Time]int{}
		for _, p := range want {
			of[at(p)]++
		}
		return of
	}
	forecast := func(want map[time.Time]int) {
		t.Helper()
		shown := ""
		defer func() {
			if t.Failed() {
				t.Log(shown)
			}
		}()
		eventually(t, "the plan is forecast", 3*time.Minute, func() bool {
			a, err := f.ask(t.Context(), 0, http.MethodGet, "/forecast", nil)
			f.must(err)
			var of struct {
				Share float64 `json:"share"`
				Items []struct {
					At             time.Time `json:"at"`
					Planned, Error int
				} `json:"items"`
			}
			if a.status != http.StatusOK {
				shown = fmt.Sprint("it is answered ", a.status)
				return false
			}
			f.must(json.Unmarshal(a.body, &of))
			shown = fmt.Sprintf("%d minutes of a share of %g", len(of.Items), of.Share)
			for _, x := range of.Items {
				if ahead := time.Until(x.At); ahead > time.Minute && ahead < 24*time.Hour && (x.Planned != want[x.At.UTC()] || x.Error != 0) {
					shown = fmt.Sprintf("%s has %d (an error of %d), want %d", x.At, x.Planned, x.Error, want[x.At.UTC()])
					return false
				}
			}
			return of.Share == 1 && len(of.Items) > 23*60
		})
	}
	forecast(fires(func(p planned) time.Time { return p.at }))

	f.Variables = append(f.Variables, "MINUTEHAND_TZDATA="+folders[1]) // the last one holds
	f.must(f.StopAll())
	start()
	a, err := f.ask(t.Context(), 0, http.MethodPost, "/jobs:replan", map[string]any{"rate_per_second": n / 10})
	f.must(err)
	var operation struct {
		ID        string `json:"operation_id"`
		Status    string `json:"status"`
		HandedOut int    `json:"handed_out"`
	}
	f.must(json.Unmarshal(a.body, &operation))
	if a.status != http.StatusAccepted {
		t.Fatalf("a replan was answered %d: %s", a.status, a.body)
	}
	state := func() {
		a, err := f.ask(t.Context(), 0, http.MethodGet, "/operations/"+operation.ID, nil)
		f.must(err)
		f.must(json.Unmarshal(a.body, &operation))
	}
	eventually(t, "a part is moved", time.Minute, func() bool { state(); return operation.HandedOut > n/10 })
	kill := func() {
		for i := range 2 { // one of them carries it out
			victim := f.Member("bucket-loader", i)
			victim.Signal(syscall.SIGKILL)
			<-victim.Ended
			f.restart("bucket-loader", i)
		}
	}
	kill()
	eventually(t, "all is moved", 3*time.Minute, func() bool { state(); return operation.Status == "done" })
	moved := 0
	for _, p := range want {
		if !p.at.Equal(p.then) {
			moved++
			f.at(p.id, p.then, p.at)
		} else {
			f.at(p.id, p.at)
		}
		if t.Failed() {
			break
		}
	}
	if operation.HandedOut != moved {
		t.Errorf("%d jobs were moved, want %d of %d", operation.HandedOut, moved, n)
	}
	kill() // a forecast is made soon after the start, and later at leisure
	forecast(fires(func(p planned) time.Time { return p.then }))
	if calls := f.sink.all(); len(calls) > 0 {
		t.Errorf("%d calls were made hours ahead", len(calls))
	}
}
