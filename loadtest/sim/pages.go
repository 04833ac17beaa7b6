package sim

import (
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// pageSize is how much a client asks for at once: so little that there are many pages.
const pageSize = "3"

// readJobs is the number of jobs whose executions are read.
const readJobs = 2

// read makes a client read the jobs, and the executions of some of them, page by page.
func (w *world) read() {
	w.listed = w.pages("/jobs", "job_id")
	w.readByKey()
	w.readOperations()
	w.readIncidents()
	ids := w.standing()
	for n := range min(readJobs, len(ids)) {
		id := ids[(int(w.faults.dice.roll("reads")*float64(len(ids)))+n)%len(ids)]
		w.executions[id] = w.pages("/jobs/"+id+"/executions", "execution_id")
		if list, whole := w.occurrences("reader", id); whole {
			w.shown[id] = list
		}
	}
}

// standing returns the jobs that were registered and not deleted.
func (w *world) standing() (ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.registered {
		if !w.deleted[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// watches is the number of accounts that are read while there are faults.
const watches = 20

// watch makes a client read the accounts of jobs while there are faults, and notes which occurrences they show as ended.
func (w *world) watch() {
	for n := range watches {
		w.after(faultsFor/watches, func() {})
		ids := w.standing()
		if len(ids) == 0 {
			continue
		}
		id := ids[int(w.faults.dice.roll("watches/%d", n)*float64(len(ids)))]
		list, _ := w.occurrences("watcher", id)
		w.mu.Lock()
		for _, s := range list {
			if s.Ended() && !w.deleted[id] { // the key of a deleted job may name another one by now
				w.shownBefore[id] = append(w.shownBefore[id], s)
			}
		}
		w.mu.Unlock()
	}
}

// occurrences reads the account of a job; whole reports whether every page was answered.
func (w *world) occurrences(who, id string) (list []ledger.Shown, whole bool) {
	to := time.Now().Add(time.Minute).UTC().Format(time.RFC3339Nano) // some are planned
	path := "/jobs/" + id + "/occurrences?limit=40&to=" + url.QueryEscape(to)
	for query := ""; ; {
		page, ok := w.request(who, http.StatusOK, http.MethodGet, path+query, nil)
		if !ok {
			return nil, false
		}
		items, _ := page["items"].([]any)
		for _, x := range items {
			item, _ := x.(map[string]any)
			at, _ := item["nominal_at"].(string)
			nominal, err := time.Parse(time.RFC3339Nano, at)
			if err != nil {
				panic(err) // the API answers in its own form
			}
			state, _ := item["state"].(string)
			disposition, _ := item["disposition"].(string)
			reason, _ := item["reason"].(string)
			list = append(list, ledger.Shown{NominalAt: nominal, State: state, Disposition: job.Disposition(disposition), Reason: reason})
		}
		cursor, _ := page["next_cursor"].(string)
		if cursor == "" {
			return list, true
		}
		query = "&cursor=" + url.QueryEscape(cursor)
	}
}

// pages counts the items on all pages of a listing by a member's value.
func (w *world) pages(path, member string) map[string]int {
	n := map[string]int{}
	for query := "?limit=" + pageSize; ; {
		page, ok := w.request("reader", http.StatusOK, http.MethodGet, path+query, nil)
		if !ok {
			return n
		}
		items, _ := page["items"].([]any)
		for _, x := range items {
			item, _ := x.(map[string]any)
			if id, _ := item[member].(string); item["skipped"] == nil { // a run of occurrences is not an execution
				n[id]++
			}
		}
		cursor, _ := page["next_cursor"].(string)
		if cursor == "" {
			return n
		}
		query = "?limit=" + pageSize + "&cursor=" + url.QueryEscape(cursor)
	}
}

// readIncidents notes the incidents that a client is shown near the end.
func (w *world) readIncidents() {
	list := []ledger.Incident{}
	for query := "?limit=" + pageSize; ; {
		answer, ok := w.request("reader", http.StatusOK, http.MethodGet, "/incidents"+query, nil)
		if !ok {
			return
		}
		items, _ := answer["items"].([]any)
		for _, x := range items {
			var i ledger.Incident
			text, err := json.Marshal(x)
			if err == nil {
				err = json.Unmarshal(text, &i)
			}
			if err != nil {
				w.violate("API", "", "an incident is %v: %v", x, err)
				return
			}
			list = append(list, i)
		}
		cursor, _ := answer["next_cursor"].(string)
		if cursor == "" {
			w.incidents = list
			return
		}
		query = "?limit=" + pageSize + "&cursor=" + url.QueryEscape(cursor)
	}
}

// foresees is how many forecasts a client asks for.
const foresees = 4

// foresee asks for forecasts now and then.
func (w *world) foresee() {
	for n := range foresees {
		w.after(time.Duration(30+w.faults.dice.roll("foresees/%d", n)*faultsFor.Seconds()/foresees)*time.Second, func() {})
		to := time.Now().Truncate(time.Hour).Add(5 * time.Hour).UTC().Format(time.RFC3339)
		answer, ok := w.request("reader", http.StatusOK, http.MethodGet, "/forecast?step=1h&to="+url.QueryEscape(to), nil)
		if !ok {
			return
		}
		delete(answer, "ETag")
		f := ledger.Forecast{AnsweredAt: time.Now()}
		text, err := json.Marshal(answer)
		if err == nil {
			err = json.Unmarshal(text, &f)
		}
		if err != nil {
			w.violate("API", "", "a forecast is %v: %v", answer, err)
			return
		}
		w.mu.Lock()
		w.forecasts = append(w.forecasts, f)
		w.mu.Unlock()
	}
}
