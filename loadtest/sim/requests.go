package sim

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// asked notes a request for a change, and its answer; the status is 0 if there was none.
func (w *world) asked(sent time.Time, method, path string, status int, h http.Header, answer map[string]any) {
	text, _ := json.Marshal(answer) // it was JSON
	list := ledger.RequestsOf(method, path, status, h, ledger.JobsIn(text))
	for n := range list {
		list[n].SentAt = sent
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = append(w.requests, list...)
}

// administer makes a tenant and keys, as an operator of the installation does, and tries again what was not answered.
func (w *world) administer() {
	w.after(time.Duration(w.faults.dice.roll("administers")*200)*time.Second, func() {})
	w.request("administrator", http.StatusCreated, http.MethodPost, "/tenants", map[string]any{"name": "acme"})
	for range 2 {
		made, ok := w.request("administrator", http.StatusCreated, http.MethodPost, "/keys",
			map[string]any{"name": "deploy", "role": "admin", "installation": true})
		if !ok {
			return
		}
		id, _ := made["key_id"].(string)
		w.after(time.Duration(w.faults.dice.roll("rotates/%s", id)*60)*time.Second, func() {})
		w.request("administrator", http.StatusCreated, http.MethodPost, "/keys/"+id+"/rotate", map[string]any{"overlap": "10m"})
		w.after(time.Duration(w.faults.dice.roll("revokes/%s", id)*60)*time.Second, func() {})
		w.request("administrator", http.StatusNoContent, http.MethodDelete, "/keys/"+id, nil)
	}
}
