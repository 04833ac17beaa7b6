package sim

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// operates is how many operations an operator asks for.
const operates = 3

// operate asks for backfills and replays, and pauses, resumes and cancels some of them.
func (w *world) operate() {
	for n := range operates {
		d := w.faults.dice
		w.after(time.Duration(20+d.roll("operates/%d", n)*130)*time.Second, func() {})
		ids := slices.DeleteFunc(w.standing(), w.isPooled)
		if len(ids) == 0 {
			continue
		}
		id := ids[int(d.roll("operates on/%d", n)*float64(len(ids)))]
		standing, ok := w.request("watcher", http.StatusOK, http.MethodGet, "/jobs/"+id, nil)
		if !ok || standing["type"] == "one_shot" {
			continue
		}
		from, to := w.began.Add(-time.Duration(90+d.roll("from/%d", n)*600)*time.Second), time.Now().Add(-time.Duration(5+d.roll("to/%d", n)*60)*time.Second) // clocks differ
		rate := 1 + int(d.roll("rate/%d", n)*20)
		body := map[string]any{"from": from, "to": to, "rate_per_second": rate}
		what, elsewhere := "backfill", ""
		var known []string
		if d.roll("replays/%d", n) < 0.4 {
			what, body["states"] = "replay", []string{"succeeded", "cancelled"}
			known = w.ended(id, from, to)
			if d.roll("goes elsewhere/%d", n) < 0.5 {
				elsewhere = pick(d, []string{"ok", "flaky", "bad", "gone"}, "elsewhere/%d", n) + ledger.ElsewhereSuffix
				body["target"] = map[string]any{"kind": "http_webhook", "url": "http://" + elsewhere + "/", "headers": map[string]any{"X-Staging": "yes"}}
			}
		} else {
			body["order"] = pick(d, []string{"oldest_first", "newest_first"}, "order/%d", n)
		}
		w.asksFor(id, true)
		begun, ok := w.request("watcher", http.StatusAccepted, http.MethodPost, "/jobs/"+id+"/"+what, body, "Idempotency-Key", fmt.Sprintf("operate-%d", n))
		if !ok { // an earlier try may have begun one, without an answer, before the job was cancelled
			continue
		}
		w.asksFor(id, false)
		if op, _ := begun["operation_id"].(string); op != "" {
			total, _ := begun["total"].(float64)
			definition, _ := begun["definition_id"].(string)
			w.mu.Lock()
			w.operations = append(w.operations, ledger.Operation{
				JobID: id, ID: op, DefinitionID: definition, Replay: what == "replay", Elsewhere: elsewhere, From: from, To: to, Total: int(total), Known: known,
				AckedAt: time.Now(), Rate: rate,
			})
			w.mu.Unlock()
			w.background.Go(func() { w.steer(op, n) })
		}
	}
}

// redriveAll asks for operations that redrive all dead letters, mostly for two at the same time.
func (w *world) redriveAll() {
	d := w.faults.dice
	w.after(time.Duration(200+d.roll("redriven")*240)*time.Second, func() {})
	for n := range 2 {
		rate := 5 + int(d.roll("redriven a second/%d", n)*20)
		known := w.deadLetters()
		w.asksFor("", true)
		begun, ok := w.request("operator", http.StatusAccepted, http.MethodPost, "/dead-letters:redrive-all", map[string]any{"rate_per_second": rate},
			"Idempotency-Key", fmt.Sprintf("redrive-all-%d", n))
		if !ok {
			return
		}
		w.asksFor("", false)
		if op, _ := begun["operation_id"].(string); op != "" {
			w.mu.Lock()
			w.operations = append(w.operations, ledger.Operation{ID: op, Redrive: true, Known: known, AckedAt: time.Now(), Rate: rate})
			w.mu.Unlock()
			w.background.Go(func() { w.steer(op, operates+n) })
		}
		w.after(time.Duration(d.roll("redriven again/%d", n)*10)*time.Second, func() {})
	}
}

// deadLetters returns the executions that a client is shown as given up, and not redriven.
func (w *world) deadLetters() (list []string) {
	for query := "?limit=100"; ; {
		page, ok := w.request("operator", http.StatusOK, http.MethodGet, "/dead-letters"+query, nil)
		if !ok {
			return list
		}
		items, _ := page["items"].([]any)
		for _, x := range items {
			item, _ := x.(map[string]any)
			if execution, _ := item["execution_id"].(string); item["redriven_by"] == nil {
				list = append(list, execution)
			}
		}
		cursor, _ := page["next_cursor"].(string)
		if cursor == "" {
			return list
		}
		query = "?limit=100&cursor=" + url.QueryEscape(cursor)
	}
}

// asksFor notes that an operation for a job, or a redrive of all jobs, was asked for, and not answered yet.
func (w *world) asksFor(id string, asks bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unanswered[id] = asks
}

// noteOperation notes what was answered about an operation.
func (w *world) noteOperation(op string, note func(o *ledger.Operation)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	note(&w.operations[slices.IndexFunc(w.operations, func(o ledger.Operation) bool { return o.ID == op })])
}

// steer pauses and resumes some operations, and cancels others.
func (w *world) steer(op string, n int) {
	d := w.faults.dice
	roll := d.roll("steers/%d", n)
	w.after(time.Duration(d.roll("steers after/%d", n)*10_000)*time.Millisecond, func() {})
	switch {
	case roll < 0.2:
		if answer, ok := w.request("watcher", http.StatusOK, http.MethodPost, "/operations/"+op+"/cancel", nil); ok {
			handedOut, _ := answer["handed_out"].(float64)
			w.noteOperation(op, func(o *ledger.Operation) { o.Cancelled, o.AtCancel = true, int(handedOut) })
		}
	case roll < 0.5:
		if _, ok := w.request("watcher", http.StatusOK, http.MethodPost, "/operations/"+op+"/pause", nil); !ok {
			return
		}
		w.after(time.Duration(d.roll("paused/%d", n)*60)*time.Second, func() {})
		if _, ok := w.request("watcher", http.StatusOK, http.MethodPost, "/operations/"+op+"/resume", map[string]any{"rate_per_second": 30}); ok {
			w.noteOperation(op, func(o *ledger.Operation) { o.Resumed = true })
		}
	}
}

// ended returns the executions of a range that a client is shown as succeeded or cancelled, without those that went elsewhere.
func (w *world) ended(id string, from, to time.Time) (list []string) {
	for query := ""; ; {
		path := "/jobs/" + id + "/executions?limit=100&from=" + from.UTC().Format(time.RFC3339Nano) + "&to=" + to.UTC().Format(time.RFC3339Nano)
		page, ok := w.request("watcher", http.StatusOK, http.MethodGet, path+query, nil)
		if !ok {
			return list
		}
		items, _ := page["items"].([]any)
		for _, x := range items {
			item, _ := x.(map[string]any)
			execution, _ := item["execution_id"].(string)
			if state, _ := item["state"].(string); item["skipped"] == nil && item["target"] == nil && slices.Contains([]string{"succeeded", "cancelled"}, state) {
				list = append(list, execution)
			}
		}
		cursor, _ := page["next_cursor"].(string)
		if cursor == "" {
			return list
		}
		query = "&cursor=" + cursor
	}
}

// readOperations notes what a client is shown of the operations near the end.
func (w *world) readOperations() {
	if len(w.operations) == 0 {
		return
	}
	page, ok := w.request("reader", http.StatusOK, http.MethodGet, "/operations", nil)
	if !ok {
		return
	}
	items, _ := page["items"].([]any)
	for _, x := range items {
		item, _ := x.(map[string]any)
		for n := range w.operations {
			if o := &w.operations[n]; item["operation_id"] == o.ID {
				handedOut, _ := item["handed_out"].(float64)
				o.Status, _ = item["status"].(string)
				o.HandedOut = int(handedOut)
				if o.Redrive {
					w.redriven += o.HandedOut
				}
			}
		}
	}
	for _, o := range w.operations {
		if w.tell("client", o.ID, "was shown as "+strings.TrimSpace(o.Status)); o.Status == "" {
			w.violate("API", o.JobID, "operation %s was answered, and is not shown", o.ID)
		}
	}
}
