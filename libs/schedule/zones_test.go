package schedule_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/libs/schedule/scheduletest"
)

// Data that an operator names replaces that in the program, and what a job's zone is there decides.
func TestSchedulesAreCompiledByTheDataThatIsNamed(t *testing.T) {
	dir := t.TempDir()
	for name, offset := range map[string]time.Duration{"Europe/London": 0, "Europe/Berlin": 2 * time.Hour} {
		if err := scheduletest.WriteZone(dir, name, scheduletest.Zone{Offset: offset}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "+VERSION"), []byte("2199a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	zones, err := schedule.OpenZones(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := job.Schedule{Type: job.ScheduleCron, CronExpr: "0 9 * * *", Timezone: "Europe/Berlin"}
	winter := time.Date(2026, 1, 15, 0, 0, 0, 0, time.UTC)
	plan, err := schedule.CompileBy(zones, s, "job_1")
	if err != nil {
		t.Fatal(err)
	}
	if at, _ := plan.First(winter); at.Hour() != 7 || plan.Note(at).TZData != "2199a" || plan.Note(at).UTCOffset != 7200 {
		t.Errorf("9:00 is at %s, %+v", at, plan.Note(at))
	}
	if plan, err = schedule.Compile(s, "job_1"); err != nil {
		t.Fatal(err)
	}
	if at, _ := plan.First(winter); at.Hour() != 8 || plan.Note(at).TZData != schedule.TZDataVersion() {
		t.Errorf("by the data in the program 9:00 is at %s, %+v", at, plan.Note(at))
	}
	for _, name := range []string{"Asia/Tokyo", "+VERSION", "Europe", "../Europe/Berlin", "Europe/Berlin\x00"} {
		s.Timezone = name
		if fault := new(schedule.Error); !errors.As(func() error { _, err := schedule.CompileBy(zones, s, "job_1"); return err }(), &fault) {
			t.Errorf("%q is taken for a zone", name)
		}
	}
}

func TestWhatHasNoZonesIsNoTimeZoneData(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("no zip"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, file, filepath.Join(dir, "missing")} {
		if _, err := schedule.OpenZones(path); err == nil {
			t.Errorf("%s is opened", path)
		}
	}
}
