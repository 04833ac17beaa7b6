package reads

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// page is a page of any items.
type page struct {
	Items      []any   `json:"items"`
	NextCursor *string `json:"next_cursor"`
}

// newPage returns an empty page.
func newPage() page { return page{Items: []any{}} }

// parsePosition returns the position that a cursor names; the empty cursor is the newest.
func parsePosition(cursor string) (jobstore.Cursor, bool) {
	if cursor == "" {
		return jobstore.Cursor{}, true
	}
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return jobstore.Cursor{}, false
	}
	ms, id, ok := strings.Cut(string(text), " ")
	at, err := strconv.ParseInt(ms, 10, 53)
	if _, bad := job.ParseExecutionID(id); !ok || err != nil || bad != nil || at < 0 {
		return jobstore.Cursor{}, false
	}
	return jobstore.Cursor{NominalAt: time.UnixMilli(at).UTC(), ExecutionID: id}, true
}

// position returns the cursor that names the execution.
func (x *Execution) position() string { return position(x.NominalAt, x.ExecutionID) }

func position(nominalAt time.Time, executionID string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(nominalAt.UnixMilli(), 10) + " " + executionID))
}
