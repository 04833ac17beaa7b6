package jobapi_test

import (
	"net/http"
	"strings"
	"testing"
)

func TestNamesAndLabelsRefuseWhatWouldChangeHowTheyAreShown(t *testing.T) {
	s := newServer(t, nil)
	labelled := strings.Replace(goodJob, `"name":"report"`, `"name":"report","labels":{"team":"LABEL"}`, 1)
	for _, bad := range []string{`\u0000`, `\n`, `\u001b[2J`, `\u007f`, `\u0085`, `\u061c`, `\u200e`, `\u200f`, `\u2028`, `\u202e`, `\u2066`, `\u2069`} {
		for pointer, body := range map[string]string{
			"/name":        strings.Replace(goodJob, "report", "a"+bad+"b", 1),
			"/labels/team": strings.Replace(labelled, "LABEL", "a"+bad+"b", 1),
		} {
			m, _ := s.answer(http.StatusUnprocessableEntity, http.MethodPost, "/jobs", body)
			faults, _ := m["errors"].([]any)
			if len(faults) != 1 || faults[0].(map[string]any)["pointer"] != pointer {
				t.Errorf("%s with %s: %v", pointer, bad, faults)
			}
		}
	}
	for _, good := range []string{"büro", "日本語", "a b", "👩‍💻", "שלום"} {
		s.create(strings.Replace(strings.Replace(labelled, "LABEL", good, 1), "report", good, 1))
	}
}
