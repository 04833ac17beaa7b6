package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// crontab is what a crontab says, as jobs.
type crontab struct {
	jobs []map[string]any
	// left are the lines that no job stands for.
	left []untranslated
	// assumed says that a job has the zone of [importing], because no CRON_TZ stands before its line.
	assumed bool
}

// untranslated is a line of a crontab, and why no job stands for it.
type untranslated struct {
	line         int
	text, reason string
}

// importing says how a crontab is read.
type importing struct {
	// timezone is the one of lines before which no CRON_TZ stands.
	timezone string
	// system: the sixth field is a user, as in /etc/crontab.
	system bool
	// target makes the target of a command that is not a call of a URL; nil for none.
	target func(command map[string]any) map[string]any
}

var (
	assignment = regexp.MustCompile(`^\s*("[^"]+"|'[^']+'|[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$`)
	blanks     = regexp.MustCompile(`[ \t]+`)
)

// timeFields is how many fields of a line say when its command runs.
const timeFields = 5

// readCrontab translates a crontab. A comment right above a line becomes the name of its job.
func readCrontab(text []byte, how importing) (c crontab) {
	environment, comment := map[string]string{}, ""
	scanner := bufio.NewScanner(bytes.NewReader(text))
	scanner.Buffer(nil, 1<<20)
	for n := 1; scanner.Scan(); n++ {
		line := strings.TrimSpace(scanner.Text())
		switch {
		case line == "":
			comment = ""
			continue
		case strings.HasPrefix(line, "#"):
			comment = strings.TrimSpace(strings.TrimLeft(line, "#"))
			continue
		}
		if m := assignment.FindStringSubmatch(line); m != nil {
			name, value := strings.Trim(m[1], `"'`), m[2]
			if len(value) > 1 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
				value = value[1 : len(value)-1]
			}
			environment[name] = value
			continue
		}
		j, err := jobOfLine(line, comment, environment, how)
		if comment = ""; err != nil {
			c.left = append(c.left, untranslated{n, line, err.Error()})
			continue
		}
		c.jobs = append(c.jobs, j)
		c.assumed = c.assumed || environment["CRON_TZ"] == ""
	}
	if err := scanner.Err(); err != nil {
		c.left = append(c.left, untranslated{0, "", "the file cannot be read to its end: " + err.Error()})
	}
	return c
}

// jobOfLine returns the job that a line of a crontab stands for.
func jobOfLine(line, comment string, environment map[string]string, how importing) (map[string]any, error) {
	fields := timeFields
	if strings.HasPrefix(line, "@") {
		fields = 1
	}
	if how.system {
		fields++
	}
	parts := blanks.Split(line, fields+1)
	if len(parts) <= fields {
		return nil, fmt.Errorf("it has no command behind %d fields", fields)
	}
	user := ""
	when := parts[:fields]
	if how.system {
		user, when = when[fields-1], when[:fields-1]
	}
	if when[0] == "@reboot" {
		return nil, errors.New("@reboot is no time; a job is due by the clock")
	}
	command, stdin := atPercent(parts[fields])
	j := map[string]any{
		"type": "cron", "cron_expr": strings.Join(when, " "), "timezone": how.timezone, "name": nameOf(comment, command),
		"missed_run_policy": "skip", // cron runs nothing that it missed
	}
	set(j, "timezone", environment["CRON_TZ"])
	_, err := schedule.Compile(job.Schedule{Type: job.ScheduleCron, CronExpr: strings.Join(when, " "), Timezone: j["timezone"].(string)}, "")
	if err != nil {
		return nil, err
	}
	if minutes, err := strconv.Atoi(environment["RANDOM_DELAY"]); err == nil && minutes > 0 {
		j["jitter"] = fmt.Sprintf("%dm", minutes)
	}
	sum := sha256.Sum256([]byte(fmt.Sprint(j["cron_expr"], j["timezone"], user, command, stdin)))
	j["key"] = "crontab-" + hex.EncodeToString(sum[:8]) // the same line is imported once
	err = calls(j, command)
	if err == nil && stdin == "" && user == "" {
		return j, nil
	}
	if how.target == nil {
		if err == nil {
			err = errors.New("it is run as another user, or with an input")
		}
		return nil, fmt.Errorf("%w; name who is to run commands with --url, --kafka, --sqs or --pool", err)
	}
	body := map[string]any{"command": command}
	set(body, "stdin", stdin, "user", user)
	own := maps.Clone(environment)
	for _, name := range []string{"CRON_TZ", "RANDOM_DELAY", "MAILTO", "MAILFROM"} {
		delete(own, name)
	}
	if len(own) > 0 {
		body["environment"] = own
	}
	delete(j, "retry_policy")
	j["target"] = how.target(body)
	return j, nil
}

// atPercent splits a command where cron does: behind the first % that is not escaped is its input, in which others end lines.
func atPercent(text string) (command, stdin string) {
	var parts []string
	var part strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && text[i+1] == '%':
			part.WriteByte('%')
			i++
		case text[i] == '%':
			parts = append(parts, part.String())
			part.Reset()
		default:
			part.WriteByte(text[i])
		}
	}
	parts = append(parts, part.String())
	return strings.TrimSpace(parts[0]), strings.Join(parts[1:], "\n")
}

// nameOf returns the name of a command's job.
func nameOf(comment, command string) string {
	name := comment
	if name == "" {
		words := strings.Fields(command)
		for len(words) > 1 && strings.Contains(words[0], "=") { // a variable of its own
			words = words[1:]
		}
		name = path.Base(words[0])
		if name == "curl" || name == "wget" {
			for _, w := range words {
				if u, err := url.Parse(strings.Trim(w, `'"`)); err == nil && u.Host != "" {
					name = u.Host + u.Path
				}
			}
		}
	}
	if len(name) > 100 {
		name = strings.ToValidUTF8(name[:100], "")
	}
	return name
}

// discards matches what throws the output of a command away.
var discards = regexp.MustCompile(`\s+(>>?\s*/dev/null\s+2>&1|2>&1\s*>>?\s*/dev/null|>>?\s*/dev/null|2>\s*/dev/null|&>\s*/dev/null)\s*$`)

// calls makes a job of a command that calls a URL with curl or wget, and does nothing else.
func calls(j map[string]any, command string) error {
	for discards.MatchString(command) {
		command = discards.ReplaceAllString(command, "")
	}
	words, err := shellWords(command)
	if err != nil {
		return err
	}
	c := call{target: map[string]any{"kind": "http_webhook"}, headers: map[string]any{}, retry: map[string]any{}}
	switch path.Base(words[0]) {
	case "curl":
		err = c.options(words[1:], curlOptions())
	case "wget":
		err = c.options(words[1:], wgetOptions())
	default:
		return errors.New("it runs a program")
	}
	if err != nil {
		return err
	}
	if c.target["url"] == nil {
		return errors.New("it names no URL")
	}
	if c.target["method"] == nil {
		if c.target["method"] = "GET"; c.target["body"] != nil {
			c.target["method"] = "POST"
		}
	}
	if len(c.headers) > 0 {
		c.target["headers"] = c.headers
	}
	if len(c.retry) > 0 {
		j["retry_policy"] = c.retry
	}
	j["target"] = c.target
	return nil
}

// call is what a command line of curl or wget says.
type call struct{ target, headers, retry map[string]any }

// option is what an option of a command means: it takes a value, unless set is nil; then it means nothing to a job.
type option struct {
	takes bool
	set   func(c *call, value string) error
}

// options reads the words behind a command's name.
func (c *call) options(words []string, known map[string]option) error {
	for i := 0; i < len(words); i++ {
		word := words[i]
		if !strings.HasPrefix(word, "-") || word == "-" {
			u, err := url.Parse(word)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || c.target["url"] != nil {
				return fmt.Errorf("%q is not the one URL with http:// or https:// that a job calls", word)
			}
			c.target["url"] = word
			continue
		}
		name, value, inline := strings.Cut(word, "=")
		if !strings.HasPrefix(word, "--") {
			name, value, inline = word[:2], word[2:], len(word) > 2
		}
		o, ok := known[name]
		switch {
		case !ok:
			return fmt.Errorf("the option %s has no counterpart in a job", name)
		case !o.takes && inline && !strings.HasPrefix(word, "--"): // several letters behind one hyphen
			words[i] = "-" + value
			i--
			continue
		case o.takes && !inline:
			if i++; i == len(words) {
				return fmt.Errorf("the option %s has no value", name)
			}
			value = words[i]
		}
		if o.set != nil {
			if err := o.set(c, value); err != nil {
				return err
			}
		}
	}
	return nil
}

var (
	nothing  = option{}
	noOutput = option{true, func(_ *call, file string) error {
		if file != "/dev/null" && file != "-" {
			return errors.New("it keeps the answer in a file")
		}
		return nil
	}}
	timeoutOf = option{true, func(c *call, seconds string) error {
		n, err := strconv.ParseFloat(seconds, 64)
		if err != nil || n < 0.001 || n > 300 {
			return fmt.Errorf("a call takes at most 300 seconds, not %q", seconds)
		}
		c.target["timeout"] = fmt.Sprintf("%dms", int(n*1000))
		return nil
	}}
	headerOf = option{true, func(c *call, header string) error {
		name, value, ok := strings.Cut(header, ":")
		if !ok {
			return fmt.Errorf("%q is no header", header)
		}
		c.headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
		return nil
	}}
	bodyOf = option{true, func(c *call, body string) error {
		if !json.Valid([]byte(body)) || strings.HasPrefix(body, "@") || c.target["body"] != nil {
			return errors.New("the body of a call is one JSON text")
		}
		c.target["body"] = json.RawMessage(body)
		return nil
	}}
	methodOf = option{true, func(c *call, method string) error {
		if !slices.Contains([]string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"}, method) {
			return fmt.Errorf("a job does not call with the method %q", method)
		}
		c.target["method"] = method
		return nil
	}}
)

// retries reads how often a call is made again, or at all.
func retries(first int) option {
	return option{true, func(c *call, times string) error {
		n, err := strconv.Atoi(times)
		if n += first; err != nil || n < 1 || n > 100 {
			return fmt.Errorf("a call is made at most 100 times, not %q", times)
		}
		c.retry["max_attempts"] = n
		return nil
	}}
}

func curlOptions() map[string]option {
	return map[string]option{
		"-s": nothing, "--silent": nothing, "-S": nothing, "--show-error": nothing, "-f": nothing, "--fail": nothing, "--fail-with-body": nothing, "--compressed": nothing,
		"-o": noOutput, "--output": noOutput, "-m": timeoutOf, "--max-time": timeoutOf, "--connect-timeout": {takes: true}, "-H": headerOf, "--header": headerOf,
		"-d": bodyOf, "--data": bodyOf, "--data-raw": bodyOf, "--json": bodyOf, "-X": methodOf, "--request": methodOf, "--retry": retries(1),
		"-I": {set: func(c *call, _ string) error { return methodOf.set(c, "HEAD") }},
	}
}

func wgetOptions() map[string]option {
	return map[string]option{
		"-q": nothing, "--quiet": nothing, "-nv": nothing, "--no-verbose": nothing, "-O": noOutput, "--output-document": noOutput, "-o": noOutput, "--output-file": noOutput,
		"-T": timeoutOf, "--timeout": timeoutOf, "-t": retries(0), "--tries": retries(0), "--header": headerOf, "--post-data": bodyOf,
		"--spider": {set: func(c *call, _ string) error { return methodOf.set(c, "HEAD") }},
	}
}

// shellWords splits a command as a shell does, if it is a simple one.
func shellWords(command string) (words []string, err error) {
	word, within, any := strings.Builder{}, byte(0), false
	for i := 0; i < len(command); i++ {
		c := command[i]
		switch {
		case within == '\'' && c != '\'', within == '"' && c != '"' && c != '\\' && c != '$' && c != '`':
			word.WriteByte(c)
		case within != 0 && c == within:
			within = 0
		case within == 0 && (c == '\'' || c == '"'):
			within, any = c, true
		case c == '\\' && i+1 < len(command):
			i++
			word.WriteByte(command[i])
			any = true
		case strings.IndexByte("$`", c) >= 0, within == 0 && strings.IndexByte("|&;<>()*[]{}!", c) >= 0, // a ? that matches no file is itself
			within == 0 && word.Len() == 0 && (c == '~' || c == '#'):
			return nil, errors.New("it needs a shell")
		case within == 0 && (c == ' ' || c == '\t'):
			if any || word.Len() > 0 {
				words = append(words, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteByte(c)
		}
	}
	if within != 0 {
		return nil, errors.New("a quote in it has no end")
	}
	if any || word.Len() > 0 {
		words = append(words, word.String())
	}
	if len(words) == 0 {
		return nil, errors.New("it has no command")
	}
	return words, nil
}
