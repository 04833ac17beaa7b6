package users

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// shownAhead is how far ahead the accounts are read, so that they show what is planned, too.
const shownAhead = time.Minute

// Accounts reads what the API shows of each occurrence of the users' jobs, by pages of different sizes. The installation is at rest.
func (u *Users) Accounts() map[string][]ledger.Shown {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	u.mu.Lock()
	registered := u.said.Registered
	u.mu.Unlock()
	shown := map[string][]ledger.Shown{}
	to := time.Now().Add(shownAhead).UTC().Format(time.RFC3339Nano)
	sizes := []string{"1", "7", "500"}
	for n, id := range registered {
		query := "?to=" + to + "&limit=" + sizes[n%len(sizes)]
		list, found := u.account(ctx, id, query)
		if found {
			shown[id] = list
		}
	}
	return shown
}

// account reads all pages of a job's account; found is false if the job was deleted.
func (u *Users) account(ctx context.Context, id, query string) (list []ledger.Shown, found bool) {
	for cursor := ""; ; {
		var page struct {
			Items      []ledger.Shown `json:"items"`
			NextCursor string         `json:"next_cursor"`
		}
		status, _, text := u.once(ctx, 0, http.MethodGet, "/jobs/"+id+"/occurrences"+query+cursor, nil, nil)
		if status == http.StatusNotFound {
			return nil, false
		}
		if err := json.Unmarshal(text, &page); err != nil || status != http.StatusOK {
			u.t.Errorf("users: the account of %s was answered %d: %s", id, status, text[:min(len(text), 500)])
			return nil, false
		}
		list = append(list, page.Items...)
		if page.NextCursor == "" {
			return list, true
		}
		cursor = "&cursor=" + page.NextCursor
	}
}
