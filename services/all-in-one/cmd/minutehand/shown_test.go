package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestTablesEscapeWhatWouldMoveTheCursor(t *testing.T) {
	var b bytes.Buffer
	jobTable(&b, []map[string]any{{
		"job_id": "job_1", "name": "büro \x1b[2J\u202eevil\ttab\nline\u2028", "type": "cron", "status": "active",
	}}, false)
	text := b.String()
	if strings.Count(text, "\n") != 2 || strings.ContainsAny(text, "\x1b\u202e\t\u2028") {
		t.Errorf("the table is %q", text)
	}
	if !strings.Contains(text, `büro \x1b[2J\u202eevil\ttab\nline\u2028`) {
		t.Errorf("the table is %q", text)
	}
}
