// Command dashboards, run in infra/tools, writes Grafana's dashboards into a folder, or with -queries prints every query of theirs, a line each, for the test
// that asks a Prometheus which scraped a real run.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
)

// panel is a graph of one or more series.
type panel struct {
	title, unit string
	series      []series
}

type series struct{ legend, query string }

type row struct {
	title  string
	panels []panel
}

func one(title, unit, legend, query string) panel {
	return panel{title, unit, []series{{legend, query}}}
}

// quantiles are the median and the 99th percentile of a histogram.
func quantiles(title, metric, by string) panel {
	legend, group := "", "le"
	if by != "" {
		legend, group = " {{"+by+"}}", "le, "+by
	}
	query := func(q string) string {
		return fmt.Sprintf("histogram_quantile(%s, sum by (%s) (rate(%s_bucket[$__rate_interval])))", q, group, metric)
	}
	return panel{title, "s", []series{{"p50" + legend, query("0.5")}, {"p99" + legend, query("0.99")}}}
}

// rate is the rate of a counter, by a label if one is named.
func rate(title, metric, by string) panel {
	if by == "" {
		return one(title, "ops", "", "sum(rate("+metric+"[$__rate_interval]))")
	}
	return one(title, "ops", "{{"+by+"}}", "sum by ("+by+") (rate("+metric+"[$__rate_interval]))")
}

// server is how the calls of a server's ports go, by port.
func server(title, ports string) row {
	of := "minutehand_port_call_seconds"
	where := `{port=~"` + ports + `"}`
	query := func(q string) string {
		return "histogram_quantile(" + q + ", sum by (le, port) (rate(" + of + "_bucket" + where + "[$__rate_interval])))"
	}
	return row{title, []panel{
		one("Calls a second", "ops", "{{port}}", "sum by (port) (rate("+of+"_count"+where+"[$__rate_interval]))"),
		{"Time of a call", "s", []series{{"p50 {{port}}", query("0.5")}, {"p99 {{port}}", query("0.99")}}},
		one("Calls that were not answered, a second", "ops", "{{port}}", "sum by (port) (rate(minutehand_port_failures_total"+where+"[$__rate_interval])) or vector(0)"),
	}}
}

// dashboards are what there is to see. Every query of the first two has an answer in a run of one process, every one of the third in a
// run of the services on the servers.
func dashboards() map[string][]row {
	return map[string][]row{
		"servers": {
			server("Cassandra", "jobs|pending|history|settings"),
			server("Redis", "hot buckets|records|board"),
			{"Redis, each server", []panel{
				one("Memory for keys", "bytes", "{{server}}", "max by (server) (minutehand_hot_tier_memory_bytes)"),
				one("… of what it may use", "percentunit", "{{server}}", "max by (server) (minutehand_hot_tier_memory_bytes / minutehand_hot_tier_memory_limit_bytes)"),
			}},
			server("Kafka", "log"),
			{"Kafka, each group", []panel{
				one("Records behind", "short", "{{group}}", "max by (group) (minutehand_log_lag_records)"),
			}},
			{"ZooKeeper", []panel{
				one("Partitions without an owner, by role", "short", "{{role}}", "sum by (role) (minutehand_coordinator_unowned_partitions)"),
				one("Processes that share the partitions", "short", "{{role}}", "count by (role) (minutehand_coordinator_unowned_partitions)"),
			}},
			server("S3", "archive"),
		},
		"overview": {
			{"What users are promised", []panel{
				rate("Calls a second, by outcome", "minutehand_executor_outcomes_total", "outcome"),
				quantiles("Lateness of first calls", "minutehand_executor_lateness_seconds", ""),
				rate("Requests a second, by status", "minutehand_job_api_requests_total", "status"),
				one("Oldest entry that is not done", "s", "", "max(minutehand_bucket_loader_oldest_entry_not_done_age_seconds)"),
			}},
			{"What may become late", []panel{
				one("Records behind, by group", "short", "{{group}}", "max by (group) (minutehand_log_lag_records)"),
				one("Fires that wait for their target", "short", "", "sum(minutehand_executor_waiting_fires)"),
				one("Targets that are too slow for what is due", "short", "", "sum(minutehand_scheduler_worker_held_back_lanes)"),
				rate("Fires deferred a second", "minutehand_executor_deferred_total", ""),
				rate("Entries put back a second", "minutehand_bucket_loader_put_back_entries_total", ""),
			}},
			{"What was given up", []panel{
				rate("Retries a second", "minutehand_retry_manager_retries_total", ""),
				rate("Dead letters a second, by host", "minutehand_retry_manager_dead_letters_by_host_total", "host"),
				one("Age of the oldest event that is not archived", "s", "", "max(minutehand_audit_writer_oldest_unarchived_age_seconds)"),
			}},
		},
		"services": {
			{"job-api", []panel{
				rate("Requests a second, by operation", "minutehand_job_api_requests_total", "operation"),
				quantiles("Time to answer", "minutehand_job_api_request_duration_seconds", "operation"),
			}},
			{"bucket-loader", []panel{
				rate("Entries staged a second", "minutehand_bucket_loader_staged_entries_total", ""),
				one("Oldest bucket that is not closed", "s", "", "max(minutehand_bucket_loader_oldest_open_bucket_age_seconds)"),
				one("Entries that wait for their put-back", "short", "", "sum(minutehand_bucket_loader_put_back_candidates)"),
			}},
			{"scheduler-worker", []panel{
				rate("Fires a second", "minutehand_scheduler_worker_fires_total", ""),
				quantiles("From the instant until the fire is durable", "minutehand_scheduler_worker_publish_delay_seconds", ""),
				one("Entries held in memory", "short", "", "sum(minutehand_scheduler_worker_held_entries)"),
				rate("Times that a shard dropped what it held, a second", "minutehand_scheduler_worker_dropped_holds_total", ""),
			}},
			{"executor", []panel{
				one("Calls under way", "short", "", "sum(minutehand_executor_running_invocations)"),
				one("Fires behind the committed position", "short", "", "sum(minutehand_executor_uncommitted_fires)"),
				rate("Fires that found a lease or an outcome, a second", "minutehand_executor_duplicate_fires_total", ""),
				rate("Fires refused by the last check, a second", "minutehand_executor_refused_total", ""),
			}},
			{"retry-manager and audit-writer", []panel{
				rate("Events settled a second", "minutehand_retry_manager_events_total", ""),
				rate("Events recorded a second", "minutehand_audit_writer_recorded_events_total", ""),
				rate("Events archived a second", "minutehand_audit_writer_archived_events_total", ""),
				rate("Objects a second", "minutehand_audit_writer_objects_total", ""),
			}},
			{"processes", []panel{
				one("CPU, in cores", "short", "{{instance}}", "sum by (instance) (rate(process_cpu_seconds_total[$__rate_interval]))"),
				one("Memory", "bytes", "{{instance}}", "sum by (instance) (process_resident_memory_bytes)"),
				one("Open files", "short", "{{instance}}", "sum by (instance) (process_open_fds)"),
				one("Processes, by version", "short", "{{version}}", "count by (version) (minutehand_build_info)"),
				one("Disk of the data folder that is free", "bytes", "{{instance}}", "sum by (instance) (minutehand_store_disk_free_bytes)"),
			}},
		},
	}
}

type object = map[string]any

// grafana is a dashboard as Grafana reads it: rows of panels, three to a line.
func grafana(name string, rows []row) object {
	const width, height, perLine = 8, 8, 3
	var panels []object
	id, y := 0, 0
	for _, r := range rows {
		id++
		panels = append(panels, object{"id": id, "type": "row", "title": r.title, "gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		for i, p := range r.panels {
			id++
			var targets []object
			for k, s := range p.series {
				targets = append(targets, object{"refId": string(rune('A' + k)), "expr": s.query, "legendFormat": s.legend, "datasource": object{"type": "prometheus", "uid": "${source}"}})
			}
			panels = append(panels, object{
				"id": id, "type": "timeseries", "title": p.title, "datasource": object{"type": "prometheus", "uid": "${source}"},
				"gridPos":     object{"x": i % perLine * width, "y": y + i/perLine*height, "w": width, "h": height},
				"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0}, "overrides": []any{}}, "targets": targets,
			})
		}
		y += (len(r.panels) + perLine - 1) / perLine * height
	}
	return object{
		"uid": "minutehand-" + name, "title": "Minutehand: " + name, "tags": []string{"minutehand"}, "schemaVersion": 39, "editable": true,
		"time": object{"from": "now-1h", "to": "now"}, "refresh": "30s", "panels": panels,
		"templating": object{"list": []object{{"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}}},
	}
}

func main() {
	queries := flag.String("queries", "", "print the queries of dashboards whose names this regular expression matches")
	flag.Parse()
	wanted, err := regexp.Compile("^(" + *queries + ")$")
	if err != nil {
		log.Fatal(err)
	}
	for name, rows := range dashboards() {
		if *queries != "" {
			if !wanted.MatchString(name) {
				continue
			}
			for _, r := range rows {
				for _, p := range r.panels {
					for _, s := range p.series {
						fmt.Printf("%s: %s\t%s\n", name, p.title, s.query)
					}
				}
			}
			continue
		}
		write(name, grafana(name, rows))
	}
	if *queries != "" {
		return
	}
	for name, tables := range archiveDashboards() {
		made, err := archived(name, tables, "../../schemas/athena/queries")
		if err != nil {
			log.Fatal(err)
		}
		write(name, made)
	}
}

// write writes a dashboard into the folder that is named.
func write(name string, dashboard object) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(dashboard); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(flag.Arg(0), name+".json"), text.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
}
