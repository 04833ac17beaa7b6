package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"net/http"
	"net/url"
	"sync"
	"time"
)

type object = map[string]any

// metrics serves the resource metrics of pods and external metrics, with the figures of the last PUT /set: cpu of every pod, and metric
// with value.
type metrics struct {
	server, token string
	client        *http.Client

	mu       sync.Mutex
	cpu      string
	external map[string]string
}

func serveMetrics(args []string) error {
	flags := flag.NewFlagSet("metrics", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:24443", "address")
	certificate := flags.String("certificate", "", "file")
	key := flags.String("key", "", "file")
	m := &metrics{cpu: "1m", external: map[string]string{}}
	flags.StringVar(&m.server, "apiserver", "", "URL")
	flags.StringVar(&m.token, "token", "", "for the API server")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// The API server's certificate is its own, made at its start on this machine.
	m.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/metrics.k8s.io/v1beta1", resources("metrics.k8s.io/v1beta1", "pods", "PodMetrics"))
	mux.HandleFunc("GET /apis/external.metrics.k8s.io/v1beta1", resources("external.metrics.k8s.io/v1beta1", "externalmetrics", "ExternalMetricValueList"))
	mux.HandleFunc("GET /apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods", m.pods)
	mux.HandleFunc("GET /apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{metric}", m.externalValue)
	mux.HandleFunc("PUT /set", m.set)
	server := &http.Server{Addr: *listen, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	return server.ListenAndServeTLS(*certificate, *key)
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the connection is the caller's
}

// resources says what a group of the API has.
func resources(group, name, kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		answer(w, object{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": []object{
			{"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": []string{"get", "list"}},
		}})
	}
}

// pods gives every container of the pods that are asked for the CPU that was set.
func (m *metrics) pods(w http.ResponseWriter, r *http.Request) {
	there := m.server + "/api/v1/namespaces/" + r.PathValue("namespace") + "/pods?labelSelector=" + url.QueryEscape(r.URL.Query().Get("labelSelector"))
	ask, err := http.NewRequestWithContext(r.Context(), http.MethodGet, there, nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	ask.Header.Set("Authorization", "Bearer "+m.token)
	resp, err := m.client.Do(ask)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer resp.Body.Close()
	var pods struct {
		Items []struct {
			Metadata struct{ Name, Namespace string }
			Spec     struct{ Containers []struct{ Name string } }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&pods); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	items := []object{}
	for _, p := range pods.Items {
		var containers []object
		for _, c := range p.Spec.Containers {
			containers = append(containers, object{"name": c.Name, "usage": object{"cpu": m.cpu, "memory": "100Mi"}})
		}
		items = append(items, object{
			"metadata": object{"name": p.Metadata.Name, "namespace": p.Metadata.Namespace}, "timestamp": time.Now().UTC().Format(time.RFC3339),
			"window": "10s", "containers": containers,
		})
	}
	answer(w, object{"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": object{}, "items": items})
}

func (m *metrics) externalValue(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	items := []object{}
	if v, ok := m.external[r.PathValue("metric")]; ok {
		items = append(items, object{
			"metricName": r.PathValue("metric"), "metricLabels": object{}, "timestamp": time.Now().UTC().Format(time.RFC3339), "value": v,
		})
	}
	answer(w, object{"kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": object{}, "items": items})
}

func (m *metrics) set(_ http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := r.FormValue("cpu"); v != "" {
		m.cpu = v
	}
	if name := r.FormValue("metric"); name != "" {
		m.external[name] = r.FormValue("value")
	}
}
