package main

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// hour is the document whose transcript is played.
const hour = "../../README.md"

// exchange is a command line of a transcript, and what it shows.
type exchange struct{ command, shows string }

// exchanges are those of the console blocks of a document.
func exchanges(text string) (all []exchange) {
	inside := false
	for line := range strings.Lines(text) {
		switch command, ok := strings.CutPrefix(line, "$ "); {
		case strings.HasPrefix(line, "```"):
			inside = strings.TrimSpace(line) == "```console"
		case inside && ok:
			all = append(all, exchange{command: strings.TrimSpace(command)})
		case inside:
			all[len(all)-1].shows += line
		}
	}
	return all
}

var (
	anID     = regexp.MustCompile(`(?:exe|job)_[0-9A-Z]{26}(?:-[smr][0-9A-Z]+)?`)
	anAt     = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+ \((?:in \d+ [dhms]|\d+ [dhms] ago|now)\)`)
	aMoment  = regexp.MustCompile(`\+?\d+ ms|in time`)
	aSpace   = regexp.MustCompile(`[ \t]+`)
	changing = regexp.MustCompile(`^minutehand (?:jobs (?:create|update|pause|resume|trigger|delete)|pause-dispatch|resume-dispatch)`)
)

// essence is a text without what differs from run to run: ids stand as numbers, in the order in which they came up.
func essence(text string, ids map[string]string) string {
	text = anID.ReplaceAllStringFunc(text, func(id string) string {
		if ids[id] == "" {
			ids[id] = fmt.Sprintf("#%d", len(ids)+1)
		}
		return ids[id]
	})
	text = aMoment.ReplaceAllString(anAt.ReplaceAllString(text, "AT"), "MS")
	var lines []string
	for line := range strings.Lines(aSpace.ReplaceAllString(text, " ")) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// transcript types the commands of the first hour at the server at ADDR, and wants to see what the document shows. What only looks is
// repeated until it shows that.
func transcript(ts *testscript.TestScript, _ bool, _ []string) {
	text, err := os.ReadFile(hour)
	ts.Check(err)
	told, real := map[string]string{}, map[string]string{}
	all := exchanges(string(text))
	if len(all) < 10 {
		ts.Fatalf("%s has a transcript of %d commands only", hour, len(all))
	}
	for _, x := range all {
		want := essence(x.shows, told)
		command := anID.ReplaceAllStringFunc(x.command, func(id string) string {
			for other, number := range real {
				if number == told[id] {
					return other
				}
			}
			return id
		})
		command = strings.ReplaceAll(command, "http://127.0.0.1:9000", ts.Getenv("TARGET"))
		var got string
		poll(ts, x.command+"\nshows what is told", func() bool {
			_ = ts.Exec("sh", "-c", command) // a mistake is part of the hour
			ids := maps.Clone(real)
			got = essence(ts.ReadFile("stdout")+ts.ReadFile("stderr"), ids)
			if got == want {
				real = ids
			} else if changing.MatchString(command) {
				ts.Fatalf("%s shows\n%s\n\ntold is\n%s", x.command, got, want)
			}
			return got == want
		})
	}
}
