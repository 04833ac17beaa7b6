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

func TestEntryThatSomebodyAskedForHasTheRulesOfItsZone(t *testing.T) {
	summer := time.Date(2030, 7, 1, 12, 0, 0, 0, time.UTC)
	shared := &job.Note{Source: "exe_1"}
	for _, c := range []struct {
		s      job.Schedule
		offset int
	}{
		{job.Schedule{Type: job.ScheduleCron, Timezone: "Europe/Berlin"}, 7200},
		{job.Schedule{Type: job.ScheduleCron, Timezone: "UTC"}, 0},
		{job.Schedule{Type: job.ScheduleCron}, 0},
		{job.Schedule{Type: job.ScheduleCron, Timezone: "Atlantis/Capital"}, 0},
		{job.Schedule{Type: job.ScheduleInterval, Timezone: "Europe/Berlin"}, 0},
	} {
		e := job.Entry{NominalAt: summer, Note: shared}
		schedule.Localize(&e, &c.s)
		if e.Note.Source != "exe_1" || e.Note.UTCOffset != c.offset || (e.Note.TZData != "") != (c.offset != 0) {
			t.Errorf("%v: %+v", c.s, e.Note)
		}
	}
	if shared.TZData != "" {
		t.Error("a note that entries share was changed")
	}
}
