package reads

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
)

// page is a page of any items.
type page struct {
	Items      []any   `json:"items"`
	NextCursor *string `json:"next_cursor"`
}

// newPage returns an empty page.
func newPage() page { return page{Items: []any{}} }

// badCursor returns the answer to a cursor that no page has returned.
func badCursor() *problem.Problem {
	return problem.New(http.StatusBadRequest, "invalid-parameter", "The cursor is not one of a page before.",
		problem.Fault{Pointer: "/query/cursor", Code: "cursor", Message: "Use the next_cursor of the page before."})
}

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
func (x *Execution) position() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(x.NominalAt.UnixMilli(), 10) + " " + x.ExecutionID))
}
