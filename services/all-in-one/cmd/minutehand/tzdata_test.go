package main

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule/scheduletest"
)

// zones makes time zone data: zoneinfo.zip as it is in the program; before and after, in which the clocks of Berlin go an hour forward in 12 and
// in 36 hours. MOVED is the cron expression of a local time that this moves from 24 to 25 hours ahead, OLD and NEW; STAYS is of one in 6 hours.
func zones(ts *testscript.TestScript, _ bool, _ []string) {
	text, err := os.ReadFile("../../../../libs/schedule/tzdata/zoneinfo.zip")
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("zoneinfo.zip"), text, 0o600))
	now := time.Now().UTC().Truncate(time.Minute)
	for dir, change := range map[string]time.Time{"before": now.Add(12 * time.Hour), "after": now.Add(36 * time.Hour)} {
		archive, err := zip.OpenReader(ts.MkAbs("zoneinfo.zip"))
		ts.Check(err)
		ts.Check(os.CopyFS(ts.MkAbs(dir), &archive.Reader))
		ts.Check(archive.Close())
		berlin := scheduletest.Zone{Offset: time.Hour, Changes: []scheduletest.Change{{At: change, Offset: 2 * time.Hour}}}
		ts.Check(scheduletest.WriteZone(ts.MkAbs(dir), "Europe/Berlin", berlin))
		ts.Check(os.WriteFile(filepath.Join(ts.MkAbs(dir), "VERSION"), []byte(dir), 0o600))
	}
	moved := now.Add(24 * time.Hour)
	ts.Setenv("MOVED", moved.Add(2*time.Hour).Format("4 15 2 1 *"))
	ts.Setenv("STAYS", now.Add(7*time.Hour).Format("4 15 * * *"))
	ts.Setenv("OLD", moved.Format(time.RFC3339))
	ts.Setenv("NEW", moved.Add(time.Hour).Format(time.RFC3339))
}

// pends checks that the next occurrence of the job with a key waits for an instant, or with ! that none does.
func pends(ts *testscript.TestScript, neg bool, args []string) {
	get := func(path string, answer any) int {
		resp, err := http.Get("http://" + ts.Getenv("ADDR") + "/api/v1" + path)
		ts.Check(err)
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		ts.Check(err)
		if resp.StatusCode == http.StatusOK {
			ts.Check(json.Unmarshal(text, answer))
		}
		return resp.StatusCode
	}
	var j struct {
		JobID string `json:"job_id"`
	}
	if code := get("/jobs/key:"+args[0], &j); code != http.StatusOK {
		ts.Fatalf("the job is answered with %d", code)
	}
	at, err := time.Parse(time.RFC3339, args[1])
	ts.Check(err)
	var x struct {
		State string `json:"state"`
	}
	code := get("/executions/"+job.ScheduleExecutionID(j.JobID, at), &x)
	if pends := code == http.StatusOK && x.State == "pending"; pends == neg {
		ts.Fatalf("at %s its execution is answered with %s", args[1], strings.TrimSpace(fmt.Sprint(code, " ", x.State)))
	}
}
