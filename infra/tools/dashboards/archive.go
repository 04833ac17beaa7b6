package main

import (
	"os"
	"path/filepath"
	"strings"
)

// table is a panel that asks the archive a named query of schemas/athena, of which only some rows are shown: those where is true.
type table struct{ title, query, where string }

// ofJob and ofTenant pick rows by what the reader of a dashboard typed; Grafana quotes it.
const (
	ofJob    = "job_id = ${job:sqlstring}"
	ofTenant = "tenant_id = ${tenant:sqlstring}"
)

// archiveDashboards are those that no metric could answer, because jobs and tenants are too many for series: they ask Athena.
func archiveDashboards() map[string][]table {
	return map[string][]table{
		"job": {
			{"What became of it", "job", ""},
			{"Who changed it", "changes", ofJob},
			{"What was skipped or cancelled, and why", "not_fired", ofJob},
			{"What was given up and not redriven", "dead_letters", ofJob},
			{"What succeeded in the end", "recovered", ofJob},
			{"What missed a deadline", "deadlines", ofJob},
		},
		"tenant": {
			{"What became of its occurrences, by day", "account", ofTenant},
			{"What was planned for each hour, and what came of it", "plan", ofTenant},
			{"How late they were, by hour", "lateness", ofTenant},
			{"What to bill, by target", "cost", ofTenant},
			{"What was given up and not redriven", "dead_letters", ofTenant},
			{"What was skipped or cancelled, and why", "not_fired", ofTenant},
			{"Who changed what", "changes", ofTenant},
		},
	}
}

// statement returns what a panel asks: the named query for the dashboard's days.
func (t table) statement(queries string) (string, error) {
	text, err := os.ReadFile(filepath.Join(queries, t.query+".sql"))
	if err != nil {
		return "", err
	}
	asked := strings.NewReplacer("{from}", "'${__from:date:YYYY-MM-DD}'", "{to}", "'${__to:date:YYYY-MM-DD}'", "{job}", "${job:sqlstring}").
		Replace(strings.TrimSpace(string(text)))
	if t.where == "" {
		return asked, nil
	}
	return "SELECT * FROM (\n" + asked + "\n) WHERE " + t.where, nil
}

// archived is a dashboard of tables as Grafana reads it, for its data source of Athena.
func archived(name string, tables []table, queries string) (object, error) {
	const width, height = 24, 8
	source := object{"type": "grafana-athena-datasource", "uid": "${archive}"}
	var panels []object
	for i, t := range tables {
		text, err := t.statement(queries)
		if err != nil {
			return nil, err
		}
		panels = append(panels, object{
			"id": i + 1, "type": "table", "title": t.title, "datasource": source, "gridPos": object{"x": 0, "y": i * height, "w": width, "h": height},
			"targets": []object{{
				"refId": "A", "datasource": source, "rawSQL": text, "format": 1,
				"connectionArgs": object{"catalog": "AwsDataCatalog", "database": "${database}", "region": "__default"},
			}},
		})
	}
	return object{
		"uid": "minutehand-" + name, "title": "Minutehand: one " + name, "tags": []string{"minutehand"}, "schemaVersion": 39, "editable": true,
		"time": object{"from": "now-7d", "to": "now"}, "timezone": "utc", "panels": panels,
		"templating": object{"list": []object{
			{"name": "archive", "type": "datasource", "query": "grafana-athena-datasource", "label": "Athena"},
			{"name": "database", "type": "textbox", "query": "minutehand", "label": "Database"},
			{"name": name, "type": "textbox", "query": "", "label": name},
		}},
	}, nil
}
