package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// jobsOf translates a crontab and returns its jobs by name.
func jobsOf(t *testing.T, text string, how importing) (map[string]map[string]any, []untranslated) {
	t.Helper()
	if how.timezone == "" {
		how.timezone = "Europe/Berlin"
	}
	c := readCrontab([]byte(text), how)
	jobs := map[string]map[string]any{}
	for _, j := range c.jobs {
		jobs[j["name"].(string)] = j
	}
	if len(jobs) != len(c.jobs) {
		t.Errorf("two of the %d jobs have one name", len(c.jobs))
	}
	return jobs, c.left
}

func asCommand(command map[string]any) map[string]any {
	return map[string]any{"kind": "http_webhook", "url": "http://runner/", "body": command}
}

func TestCallsOfACrontabBecomeWebhooks(t *testing.T) {
	jobs, left := jobsOf(t, `
# every morning
0 6 * * 1-5   curl -fsS -m 10 --retry 2 -H 'Authorization: Bearer x' -d '{"a": "b c"}' https://example.com/report?x=1 >/dev/null 2>&1

*/5 * * * * /usr/bin/wget -q -O /dev/null --tries=3 "https://example.com/poll"
@daily	curl -sX DELETE https://example.com/old
CRON_TZ=America/New_York
RANDOM_DELAY=15
30 2 * * * curl -I https://example.com/ny
`, importing{})
	if len(left) != 0 {
		t.Errorf("left out: %v", left)
	}
	for name, want := range map[string]string{
		"every morning":    `{"cron_expr":"0 6 * * 1-5","timezone":"Europe/Berlin","retry_policy":{"max_attempts":3},"target":{"kind":"http_webhook","url":"https://example.com/report?x=1","method":"POST","timeout":"10000ms","headers":{"Authorization":"Bearer x"},"body":{"a":"b c"}}}`,
		"example.com/poll": `{"cron_expr":"*/5 * * * *","timezone":"Europe/Berlin","retry_policy":{"max_attempts":3},"target":{"kind":"http_webhook","url":"https://example.com/poll","method":"GET"}}`,
		"example.com/old":  `{"cron_expr":"@daily","timezone":"Europe/Berlin","target":{"kind":"http_webhook","url":"https://example.com/old","method":"DELETE"}}`,
		"example.com/ny":   `{"cron_expr":"30 2 * * *","timezone":"America/New_York","jitter":"15m","target":{"kind":"http_webhook","url":"https://example.com/ny","method":"HEAD"}}`,
	} {
		j := jobs[name]
		if j["type"] != "cron" || j["missed_run_policy"] != "skip" || !strings.HasPrefix(j["key"].(string), "crontab-") {
			t.Errorf("%s: %v", name, j)
		}
		for _, member := range []string{"type", "missed_run_policy", "key", "name"} {
			delete(j, member)
		}
		sameJSON(t, name, j, want)
	}
}

// sameJSON compares a value with JSON.
func sameJSON(t *testing.T, what string, v any, want string) {
	t.Helper()
	text, err := json.Marshal(v)
	var got, wanted any
	if err != nil || json.Unmarshal(text, &got) != nil || json.Unmarshal([]byte(want), &wanted) != nil {
		t.Fatal(what, err, want)
	}
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(wanted)
	if string(a) != string(b) {
		t.Errorf("%s is %s, want %s", what, a, b)
	}
}

func TestOtherCommandsOfACrontabBecomeMessages(t *testing.T) {
	text := `MAILTO=ops@example.com
SHELL=/bin/bash
"BACKUP DIR" = '/srv/backups of us'
17 * * * * root cd / && run-parts /etc/cron.hourly
0 0 1 * * www-data mail -s "100\% done" boss%Hello,%all is well.%
`
	jobs, left := jobsOf(t, text, importing{system: true, target: asCommand})
	if len(left) != 0 {
		t.Errorf("left out: %v", left)
	}
	environment := `"environment":{"BACKUP DIR":"/srv/backups of us","SHELL":"/bin/bash"}`
	sameJSON(t, "the first", jobs["cd"]["target"], `{"kind":"http_webhook","url":"http://runner/","body":{"command":"cd / && run-parts /etc/cron.hourly","user":"root",`+environment+`}}`)
	sameJSON(t, "the second", jobs["mail"]["target"], `{"kind":"http_webhook","url":"http://runner/","body":{"command":"mail -s \"100% done\" boss","stdin":"Hello,\nall is well.\n","user":"www-data",`+environment+`}}`)
}

func TestLinesThatCannotBeTranslatedAreNamedWithTheReason(t *testing.T) {
	for line, want := range map[string]string{
		"@reboot /usr/bin/start":                                    "@reboot is no time",
		"* * * * *":                                                 "no command",
		"61 * * * * curl https://example.com/":                      "minute",
		"* * * * * /usr/bin/backup":                                 "runs a program",
		"* * * * * curl https://example.com/ | mail me":             "needs a shell",
		"* * * * * curl https://example.com/$(hostname)":            "needs a shell",
		"* * * * * curl https://example.com/a;rm x":                 "needs a shell",
		"* * * * * curl https://example.com/ https://example.com/2": "not the one URL",
		"* * * * * curl -L https://example.com/":                    "-L has no counterpart",
		"* * * * * curl -o /tmp/x https://example.com/":             "keeps the answer in a file",
		"* * * * * curl -d a=b https://example.com/":                "one JSON text",
		"* * * * * curl -d @file https://example.com/":              "one JSON text",
		"* * * * * curl -m 900 https://example.com/":                "at most 300 seconds",
		"* * * * * curl ftp://example.com/":                         "not the one URL",
		"* * * * * curl -s":                                         "names no URL",
		"* * * * * curl 'https://example.com/":                      "no end",
		"* * * * * curl -X":                                         "has no value",
		"* * * * * curl https://example.com/ %input":                "with an input",
		"* * * * * curl --data-urlencode x=y https://example.com/":  "--data-urlencode has no counterpart",
	} {
		jobs, left := jobsOf(t, line+"\n", importing{})
		if len(jobs) != 0 || len(left) != 1 || left[0].line != 1 || !strings.Contains(left[0].reason, want) {
			t.Errorf("%s: %v, %v", line, jobs, left)
		}
	}
}

func TestALineHasTheSameKeyWhereverItStands(t *testing.T) {
	one, _ := jobsOf(t, "# a\n0 6 * * * curl https://example.com/\n", importing{})
	two, _ := jobsOf(t, "\n\n# a\n\t0\t6 * * *   curl https://example.com/\n", importing{})
	other, _ := jobsOf(t, "# a\n0 7 * * * curl https://example.com/\n", importing{})
	if one["a"]["key"] != two["a"]["key"] || one["a"]["key"] == other["a"]["key"] {
		t.Errorf("%v, %v, %v", one, two, other)
	}
}

func FuzzCrontab(f *testing.F) {
	f.Add("# a\n0 6 * * * curl -s 'https://example.com/' >/dev/null\nA=b\n@daily x%y\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, how := range []importing{{timezone: "UTC"}, {timezone: "UTC", system: true, target: asCommand}} {
			c := readCrontab([]byte(text), how)
			if _, err := json.Marshal(c.jobs); err != nil {
				t.Errorf("%q: %v", text, err)
			}
		}
	})
}
