package embedded

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/job"
)

// Somebody may remove a row by hand. The other jobs are listed all the same.
func TestRowThatIsGoneHidesNoOtherJobFromTheList(t *testing.T) {
	db, err := Open(Options{Dir: "/data", FS: vfs.NewMem(), Partitions: 1, SetupMinute: job.Minute(time.Now())})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	jobs := NewJobStore(db)
	var ids []string
	for i := range 5 {
		j := job.Job{ID: fmt.Sprintf("%s01M7ZJW5E6D77SAJPX%08d", job.JobPrefix, i), Tenant: job.DefaultTenant, Status: job.StatusActive, Version: 1}
		j.Definition = job.Definition{ID: job.DefinitionPrefix + "01M7ZJW5E6D77SAJPXRZ65CMZZ", Schedule: job.Schedule{Type: job.ScheduleInterval, Every: time.Hour}}
		if err := jobs.Create(t.Context(), j, true); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, j.ID)
	}
	for _, n := range []int{4, 2} { // also the first of a page
		if err := db.pebble.Delete(jobKey(ids[n]), pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for cursor, page := "", 0; page == 0 || cursor != ""; page++ {
		list, next, err := jobs.List(t.Context(), job.DefaultTenant, cursor, 1)
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			got = append(got, list[i].ID)
		}
		cursor = next
	}
	if want := []string{ids[3], ids[1], ids[0]}; !slices.Equal(got, want) {
		t.Errorf("%v are listed, want %v", got, want)
	}
}
