package jobapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

// wrongJobs is how many jobs of a batch are wrong all over.
const wrongJobs = 200

// costly returns bodies of about the allowed size that would cost many times that to decode and to check, if they were let
// through.
func costly() map[string]struct{ path, body, code string } {
	const batch, single = 16<<20 - 100, 512<<10 - 200
	fill := func(size int, part string) string { return strings.Repeat(part, size/len(part)) }
	members := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"m%d":1,`, i)
		}
		return b.String() + `"last":1`
	}
	job := func(body string) string {
		return `{"name":"n","type":"one_shot","delay":"1h","target":{"kind":"http_webhook","url":"https://t.example/","body":` + body + `}}`
	}
	return map[string]struct{ path, body, code string }{
		"a batch of ones":                  {"/jobs:batch", `{"jobs":[` + fill(batch, `1,`) + `1]}`, "max-items"},
		"a batch of objects":               {"/jobs:batch", `{"jobs":[` + fill(batch, `{},`) + `{}]}`, "max-items"},
		"an object of very many members":   {"/jobs:batch", `{` + members(1_200_000) + `}`, "max-properties"},
		"jobs of too many members":         {"/jobs:batch", `{"jobs":[` + strings.Repeat(`{`+members(300)+`},`, 1000) + `1]}`, "max-properties"},
		"lists in lists":                   {"/jobs:batch", `{"jobs":[` + fill(batch, `[[[[]]]],`) + `1]}`, "max-items"},
		"bodies of many values in a batch": {"/jobs:batch", `{"jobs":[` + strings.TrimSuffix(strings.Repeat(job(`[`+fill(10_000, `1,`)+`1]`)+`,`, 900), `,`) + `]}`, "too-many-values"},
		"a target's body of ones":          {"/jobs", job(`[` + fill(single, `1,`) + `1]`), "too-many-values"},
		"a target's body of members":       {"/jobs", job(`{` + members(40_000) + `}`), "too-many-values"},
		"jobs that are wrong all over":     {"/jobs:batch", `{"jobs":[` + strings.TrimSuffix(strings.Repeat(`{"labels":{`+members(50)+`},`+members(100)+`},`, wrongJobs), `,`) + `]}`, ""},
		"labels without end":               {"/jobs", `{"labels":{` + members(40_000) + `}}`, "max-properties"},
	}
}

// The total allocated is several times what is in use at a time: buffers and maps that grew soon become garbage, and under
// the race detector pools keep nothing. Without any bound it was 200 times the size.
func TestWhatABodyCostsIsBoundedByItsSize(t *testing.T) {
	s := newServer(t, nil)
	for name, c := range costly() {
		perJob := int64(0)
		if c.code == "" { // each is checked, and 150 of its faults are found
			perJob = wrongJobs * 640 << 10
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := s.do(http.MethodPost, c.path, c.body)
		runtime.ReadMemStats(&after)
		if spent := int64(after.TotalAlloc - before.TotalAlloc); spent > 12*int64(len(c.body))+8<<20+perJob {
			t.Errorf("%s: %d bytes took %d of memory in all", name, len(c.body), spent)
		}
		var p struct {
			Errors  []struct{ Code string }
			Results []struct{ Problem struct{ Errors []any } }
		}
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusUnprocessableEntity || len(p.Errors) != 1 || p.Errors[0].Code != c.code {
			if told := 0; c.code == "" && w.Code == http.StatusOK {
				for _, r := range p.Results {
					told += len(r.Problem.Errors)
				}
				if told < 1000+wrongJobs-100 || told > 1000+wrongJobs {
					t.Errorf("%s: %d faults are told", name, told)
				}
				continue
			}
			t.Errorf("%s: %d %.300s, want 422 and %s", name, w.Code, w.Body, c.code)
		}
	}
}

// Measures their time. The aim is at most half a second.
func BenchmarkBodiesOfTheAllowedSize(b *testing.B) {
	s := newServer(b, nil)
	for name, c := range costly() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			for b.Loop() {
				s.do(http.MethodPost, c.path, c.body)
			}
		})
	}
}
