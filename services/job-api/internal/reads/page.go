package reads

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
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

// span returns from when on a request asks, as far back as history goes, and before when; zero if it does not say.
func span(r *edge.Request, now time.Time) (from, to time.Time) {
	from = now.Add(-jobstore.HistoryTTL)
	if at, err := time.Parse(time.RFC3339Nano, r.Parameters["from"]); err == nil {
		from = job.Later(from, job.Bound(at))
	}
	if at, err := time.Parse(time.RFC3339Nano, r.Parameters["to"]); err == nil {
		to = job.Bound(at)
	}
	return from, to
}
