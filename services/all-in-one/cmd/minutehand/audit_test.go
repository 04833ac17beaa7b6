package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

// An API of three jobs on two pages: of one an instant is unknown, one is deleted while the audit runs, and the server is busy at first.
func TestAuditNamesWhatIsNotOnRecord(t *testing.T) {
	busy := true
	api := http.NewServeMux()
	api.HandleFunc("/api/v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case busy:
			busy = false
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.FormValue("cursor") == "":
			fmt.Fprint(w, `{"items": [{"job_id": "job_1"}, {"job_id": "job_2"}], "next_cursor": "next"}`)
		default:
			fmt.Fprint(w, `{"items": [{"job_id": "job_3"}], "next_cursor": null}`)
		}
	})
	api.HandleFunc("/api/v1/jobs/{id}/occurrences", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.PathValue("id") == "job_2":
			w.WriteHeader(http.StatusNotFound)
		case r.FormValue("cursor") == "":
			fmt.Fprint(w, `{"items": [{"state": "succeeded"}, {"state": "skipped"}], "next_cursor": "next"}`)
		case r.PathValue("id") == "job_3":
			fmt.Fprint(w, `{"items": [{"state": "unknown", "nominal_at": "2030-01-01T00:00:00Z", "reason": "Nothing is on record of it."}], "next_cursor": null}`)
		default:
			fmt.Fprint(w, `{"items": [], "next_cursor": null}`)
		}
	})
	server := httptest.NewServer(api)
	defer server.Close()
	c := auditCmd{client: client{Server: server.URL}}
	a := audit{From: time.Now().Add(-time.Hour), To: time.Now(), States: map[string]int{}}
	if err := c.each(t.Context(), func(id string) error { return c.read(t.Context(), id, &a, func() {}) }); err != nil {
		t.Fatal(err)
	}
	if a.Jobs != 2 || a.Occurrences != 5 || a.States["succeeded"] != 2 || a.States["unknown"] != 1 {
		t.Errorf("%d jobs, %d instants, %v", a.Jobs, a.Occurrences, a.States)
	}
	if want := []unknown{{"job_3", "2030-01-01T00:00:00Z", "Nothing is on record of it."}}; !slices.Equal(a.Unknown, want) {
		t.Errorf("unknown: %v", a.Unknown)
	}
}
