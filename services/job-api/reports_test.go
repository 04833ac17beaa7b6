package jobapi_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/minutehand/minutehand/libs/wire"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// list returns a JSON list of so many ones, and object an object of so many members.
func list(n int) string { return "[" + strings.Repeat("1,", n-1) + "1]" }

func object(n int) string {
	members := make([]string, n)
	for i := range members {
		members[i] = `"m` + strconv.Itoa(i) + `":1`
	}
	return "{" + strings.Join(members, ",") + "}"
}

// A target's body may hold so much, too. Nothing but bytes, values and depth bounds it.
func TestWhatAWorkerReportsMayBeAnyJSON(t *testing.T) {
	for name, report := range map[string]string{
		"a long list": list(1001), "a wide object": object(1001), "within another": `{"done":` + list(5000) + `,"of":{"x":` + object(200) + `}}`, "many values": list(19_000),
	} {
		t.Run(name, func(t *testing.T) {
			log := &told{}
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = log })
			key := s.waiting(func(of string) string { return of })
			task := s.poll()[0]
			path, token := "/pools/work/tasks/"+task.ID, `{"fencing_token":"`+task.Token+`",`
			if w := s.do(http.MethodPost, path+"/heartbeat", token+`"progress":`+report+`}`); w.Code != http.StatusOK {
				t.Errorf("progress was answered %d: %s", w.Code, w.Body)
			}
			if kept, err := s.deps.Settings.Items(t.Context(), "progress/"+key.ExecutionID, "", 10); err != nil || len(kept) != 1 || string(kept[0].Value) != report {
				t.Errorf("%v: %d items are kept", err, len(kept))
			}
			if w := s.do(http.MethodPost, path+"/complete", token+`"result":`+report+`}`); w.Code != http.StatusNoContent {
				t.Fatalf("a result was answered %d: %s", w.Code, w.Body)
			}
			if e, err := wire.EventOf(&log.last); err != nil || e.Outcome.ResponseBytes != int64(len(report)) {
				t.Errorf("%v: a result of %d bytes is kept as one of %d", err, len(report), e.Outcome.ResponseBytes)
			}
		})
	}
	s := newServer(t, nil)
	s.waiting(func(of string) string { return of })
	task := s.poll()[0]
	for name, c := range map[string]struct{ member, report, code string }{
		"too many values":      {"progress", list(20_001), "too-many-values"},
		"too many bytes":       {"progress", `"` + strings.Repeat("x", 64<<10) + `"`, "too-large"},
		"a member of no beat":  {"other", list(1001), "max-items"},
		"a wide unknown value": {"other", object(129), "max-properties"},
	} {
		w := s.do(http.MethodPost, "/pools/work/tasks/"+task.ID+"/heartbeat", `{"fencing_token":"`+task.Token+`","`+c.member+`":`+c.report+`}`)
		if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), `"`+c.code+`"`) {
			t.Errorf("%s: answered %d: %s", name, w.Code, w.Body)
		}
	}
}

func TestExampleInAFaultOfATaskIDIsOne(t *testing.T) {
	s := newServer(t, nil)
	poll := func(id string) (status int, message string) {
		w := s.do(http.MethodPost, "/pools/work/poll", `{"poll_id":"poll-0001","worker":"w","handlers":["do"],"running":["`+id+`"]}`)
		var p struct{ Errors []struct{ Message string } }
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		if len(p.Errors) > 0 {
			message = p.Errors[0].Message
		}
		return w.Code, message
	}
	status, message := poll("x")
	example := regexp.MustCompile(`"(exe_[^"]+)"`).FindStringSubmatch(message)
	if status != http.StatusUnprocessableEntity || example == nil {
		t.Fatalf("answered %d: %s", status, message)
	}
	if status, message := poll(example[1]); status != http.StatusOK {
		t.Errorf("%s was answered %d: %s", example[1], status, message)
	}
}
