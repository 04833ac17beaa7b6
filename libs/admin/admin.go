// Package admin serves what operators ask of a process: /metrics, /healthz and /readyz.
package admin

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Paths returns the paths that Handler answers.
func Paths() []string { return []string{"/metrics", "/healthz", "/readyz"} }

// Handler answers the admin paths. missing returns the names of what the process still lacks before it is ready. tzData is the release of the
// time zone data by which it plans.
func Handler(metrics prometheus.Gatherer, tzData string, missing func() []string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if lacks := missing(); len(lacks) > 0 {
			answer(w, http.StatusServiceUnavailable, map[string]any{"status": "not ready", "missing": lacks, "tzdata": tzData})
			return
		}
		answer(w, http.StatusOK, map[string]any{"status": "ready", "tzdata": tzData})
	})
	return mux
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// If this fails the client is gone, so there is nobody left to tell.
	_ = json.NewEncoder(w).Encode(body)
}
