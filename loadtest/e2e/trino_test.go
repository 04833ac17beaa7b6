//go:build trino

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/schemas"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
	"github.com/minutehand/minutehand/services/audit-writer/archivesql"
)

// Athena is Trino, with Hive's statement for the table. These tests run the same table and queries on Trino 476, on the S3 server of
// infra/local, whose ports they find in the environment.

// statement is Trino's form of Athena's CREATE EXTERNAL TABLE: every column, partition and property, unchanged but for the grammar.
func statement(t *testing.T, athena string) string {
	t.Helper()
	athena = regexp.MustCompile(`(?m)^--.*\n`).ReplaceAllString(athena, "")
	form := regexp.MustCompile(`(?s)^CREATE EXTERNAL TABLE IF NOT EXISTS (\w+) \((.*)\)\nPARTITIONED BY \((.*?)\)\nSTORED AS PARQUET\nLOCATION '([^']*)'\nTBLPROPERTIES \((.*)\)\s*$`)
	parts := form.FindStringSubmatch(athena)
	if parts == nil {
		t.Fatal("the table is not of the form that is known")
	}
	var columns, partitions, properties []string
	for _, m := range regexp.MustCompile("`(\\w+)` (\\w+)").FindAllStringSubmatch(parts[2]+parts[3], -1) {
		kind := map[string]string{"string": "varchar", "bigint": "bigint", "timestamp": "timestamp(3)"}[m[2]]
		if kind == "" {
			t.Fatalf("column %s has the unknown type %s", m[1], m[2])
		}
		columns = append(columns, fmt.Sprintf("%q %s", m[1], kind))
	}
	for _, m := range regexp.MustCompile("`(\\w+)` string").FindAllStringSubmatch(parts[3], -1) {
		partitions = append(partitions, "'"+m[1]+"'")
	}
	for _, m := range regexp.MustCompile(`'([^']*)' = '([^']*)'`).FindAllStringSubmatch(parts[5], -1) {
		if !knownProperty(m[1]) { // a misspelt one would be ignored
			t.Errorf("the table has the unknown property %s", m[1])
		}
		properties = append(properties, fmt.Sprintf("ROW('%s','%s')", m[1], m[2]))
	}
	return fmt.Sprintf("CREATE TABLE %s (%s) WITH (format='PARQUET', external_location='%s', partitioned_by=ARRAY[%s], extra_properties=MAP_FROM_ENTRIES(ARRAY[%s]))",
		parts[1], strings.Join(columns, ", "), parts[4], strings.Join(partitions, ","), strings.Join(properties, ","))
}

func knownProperty(name string) bool {
	return name == "projection.enabled" || name == "storage.location.template" ||
		regexp.MustCompile(`^projection\.(region|dt|hour)\.(type|values|range|format|digits|interval|interval\.unit)$`).MatchString(name)
}

// trino asks a server by its REST protocol.
type trino struct{ url, schema string }

type trinoAnswer struct {
	NextURI string `json:"nextUri"`
	Columns []struct {
		Name string `json:"name"`
	} `json:"columns"`
	Data  [][]any `json:"data"`
	Stats struct {
		Physical int64 `json:"physicalInputBytes"`
	} `json:"stats"`
	Error *struct {
		Name    string `json:"errorName"`
		Message string `json:"message"`
	} `json:"error"`
}

var errAgain = errors.New("not now")

func (s trino) call(ctx context.Context, method, url, body string) (a trinoAnswer, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	for name, value := range map[string]string{"User": "test", "Catalog": "awsdatacatalog", "Schema": s.schema, "Time-Zone": "UTC"} {
		r.Header.Set("X-Trino-"+name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		d := json.NewDecoder(resp.Body)
		d.UseNumber()
		return a, d.Decode(&a)
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return a, errAgain
	}
	text, _ := io.ReadAll(resp.Body)
	return a, fmt.Errorf("%s: %s", resp.Status, text)
}

// ask runs a statement, and returns its rows and how many bytes of objects it read.
func (s trino) ask(t *testing.T, text string) (rows []map[string]string, read int64) {
	t.Helper()
	for limit := time.Now().Add(2 * time.Minute); ; {
		rows, read, err := s.try(t.Context(), text)
		if err == nil {
			return rows, read
		}
		if !errors.Is(err, errAgain) || time.Now().After(limit) {
			t.Fatalf("%s\n%v", text, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (s trino) try(ctx context.Context, text string) (rows []map[string]string, read int64, err error) {
	a, err := s.call(ctx, http.MethodPost, s.url+"/v1/statement", text)
	var names []string
	for {
		if err != nil {
			return nil, 0, err
		}
		if a.Error != nil && a.Error.Name == "NO_NODES_AVAILABLE" { // for a moment after the start
			return nil, 0, errAgain
		}
		if a.Error != nil {
			return nil, 0, fmt.Errorf("%s: %s", a.Error.Name, a.Error.Message)
		}
		if names == nil {
			for _, c := range a.Columns {
				names = append(names, c.Name)
			}
		}
		for _, values := range a.Data {
			row := map[string]string{}
			for i, v := range values {
				if v != nil {
					row[names[i]] = fmt.Sprint(v)
				}
			}
			rows = append(rows, row)
		}
		if read = a.Stats.Physical; a.NextURI == "" {
			return rows, read, nil
		}
		a, err = s.call(ctx, http.MethodGet, a.NextURI, "")
	}
}

// older is a row as the first release wrote it.
type older struct {
	EventID   string `parquet:"event_id,optional"`
	EventType string `parquet:"event_type,optional"`
	JobID     string `parquet:"job_id,optional"`
	Attempt   int64  `parquet:"attempt"`
	Outcome   string `parquet:"outcome,optional"`
}

func TestNamedQueriesAnswerOnTrinoWhatTheClientSaw(t *testing.T) {
	w := witness(t)
	bucket := fmt.Sprintf("athena-%d", time.Now().UnixNano())
	store, err := s3.NewArchive(t.Context(), s3.Options{
		Bucket: bucket, Region: "us-east-1", Endpoint: "http://127.0.0.1:" + os.Getenv("S3_PORT"), AccessKey: "minutehand", SecretKey: "minutehand-local",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.CreateBucket(t.Context()); err != nil {
		t.Fatal(err)
	}
	local, err := embedded.OpenArchive(filepath.Join(w.dir, "archive"))
	if err != nil {
		t.Fatal(err)
	}
	names, err := local.List(t.Context(), "audit/")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		body, err := os.ReadFile(filepath.Join(w.dir, "archive", filepath.FromSlash(name)))
		if err == nil {
			err = store.PutIfAbsent(t.Context(), name, body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	server := trino{url: "http://127.0.0.1:" + os.Getenv("TRINO_PORT"), schema: strings.ReplaceAll(bucket, "-", "_")}
	server.ask(t, "CREATE SCHEMA "+server.schema)
	raw, compacted := schemas.ArchiveTables(bucket, "local", "elsewhere")
	server.ask(t, statement(t, raw))
	server.ask(t, statement(t, compacted))
	server.ask(t, view(schemas.NeverCompacted))
	w.compare(t, func(t *testing.T, text string) []map[string]string {
		rows, _ := server.ask(t, text)
		return rows
	})

	server.picked(t, w)

	// The days of a query bound what it reads, and so does its hour.
	count := "SELECT count(*) AS n, count(error) AS errors FROM events WHERE dt BETWEEN '2026-01-01' AND '2099-01-01'"
	all, read := server.ask(t, count)
	none, readOfNone := server.ask(t, count+" AND region = 'elsewhere'")
	hour := strings.Split(names[0], "/hour=")[1][:2]
	_, readOfHour := server.ask(t, count+" AND hour = '"+hour+"'")
	if all[0]["n"] == "0" || none[0]["n"] != "0" || read == 0 || readOfNone != 0 || readOfHour == 0 {
		t.Errorf("%v rows from %d bytes; of another region %v from %d; of an hour from %d", all, read, none, readOfNone, readOfHour)
	}

	// What the first release wrote is read beside it, a day earlier, with null for what it did not know.
	var body bytes.Buffer
	out := parquet.NewGenericWriter[older](&body)
	_, err = out.Write([]older{{EventID: "exe_0/1/succeeded", EventType: "attempt", JobID: "job_0", Attempt: 1, Outcome: "succeeded"}})
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
	before := w.from.AddDate(0, 0, -1).Format(archivesql.Day)
	if err := store.PutIfAbsent(t.Context(), "audit/region=local/dt="+before+"/hour=09/old-00000-00000000000000000000.parquet", body.Bytes()); err != nil {
		t.Fatal(err)
	}
	old, readOfOld := server.ask(t, "SELECT event_id, attempt, reason, target_host, utc_offset_seconds, hour FROM events WHERE dt = '"+before+"'")
	if len(old) != 1 || len(old[0]) != 3 || old[0]["hour"] != "09" || old[0]["event_id"] != "exe_0/1/succeeded" {
		t.Errorf("what an earlier release wrote reads as %v", old)
	}
	_, readOfBoth := server.ask(t, count)
	if readOfOld >= readOfBoth {
		t.Errorf("a day was read from %d bytes, all days from %d", readOfOld, readOfBoth)
	}
	server.compacted(t, w, store, count)
	t.Logf("%d objects; all days: %d bytes read, the hour %s: %d, the day before: %d, another region: %d", len(names), readOfBoth, hour, readOfHour, readOfOld, readOfNone)
}

// view is Trino's form of Athena's statement.
func view(compacted string) string {
	return regexp.MustCompile(`(?m)^--.*\n`).ReplaceAllString(schemas.ArchiveView(compacted), "")
}

// compacted compacts every day of an archive, lets the view read them so, and holds the queries against the client again.
func (s trino) compacted(t *testing.T, w *witnessed, store archive.Archive, count string) {
	t.Helper()
	before, readBefore := s.ask(t, count)
	small, large := 0, 0
	first, last := w.from.UTC().Truncate(24*time.Hour).AddDate(0, 0, -1), time.Now().UTC().Truncate(24*time.Hour)
	for day := first; !day.After(last); day = day.AddDate(0, 0, 1) {
		c, err := auditwriter.Compact(t.Context(), store, "local", day, day.Add(24*time.Hour+auditwriter.SettledAfter), nil)
		if err != nil {
			t.Fatal(err)
		}
		small, large = small+c.Small, large+c.Objects
	}
	if again, _ := s.ask(t, count); !maps.Equal(again[0], before[0]) {
		t.Errorf("while nobody reads what was compacted, %v were read, and %v before", again, before)
	}
	s.ask(t, view(last.Format(archivesql.Day)))
	after, readAfter := s.ask(t, count)
	if !maps.Equal(after[0], before[0]) {
		t.Errorf("of compacted days %v were read, and %v before", after, before)
	}
	old, _ := s.ask(t, "SELECT event_id, attempt, reason, target_host, utc_offset_seconds, hour FROM events WHERE dt = '"+first.Format(archivesql.Day)+"'")
	if len(old) != 1 || len(old[0]) != 3 || old[0]["event_id"] != "exe_0/1/succeeded" {
		t.Errorf("what an earlier release wrote reads, compacted, as %v", old)
	}
	w.compare(t, func(t *testing.T, text string) []map[string]string {
		rows, _ := s.ask(t, text)
		return rows
	})
	t.Logf("%d objects were compacted into %d; all days: %d bytes read before, %d after", small, large, readBefore, readAfter)
}

// picked asks the named queries as the dashboards of one job and one tenant do (infra/tools/dashboards), which show some rows of each.
func (s trino) picked(t *testing.T, w *witnessed) {
	t.Helper()
	queries, err := schemas.ArchiveQueries()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range queries {
		of := map[string]string{
			"account": "tenant_id", "lateness": "tenant_id", "cost": "tenant_id", "dead_letters": "tenant_id", "not_fired": "tenant_id", "changes": "tenant_id",
			"recovered": "job_id",
		}[q.Name]
		if of == "" {
			continue
		}
		text := q.With(map[string]string{
			schemas.ParameterFrom: w.from.Format(archivesql.Day), schemas.ParameterTo: time.Now().UTC().Format(archivesql.Day),
		})
		all, _ := s.ask(t, text)
		some, _ := s.ask(t, "SELECT * FROM (\n"+strings.TrimSpace(text)+"\n) WHERE "+of+" = 'default'")
		none, _ := s.ask(t, "SELECT * FROM (\n"+strings.TrimSpace(text)+"\n) WHERE "+of+" = 'another'")
		if of == "tenant_id" && len(some) != len(all) || len(none) > 0 {
			t.Errorf("%s has %d rows; %d of the one tenant, %d of another", q.Name, len(all), len(some), len(none))
		}
	}
}
