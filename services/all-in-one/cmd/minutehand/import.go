package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// importCmd are the commands that take jobs over from elsewhere.
type importCmd struct {
	Crontab importCrontabCmd `cmd:"" help:"Make jobs of the lines of a crontab."`
}

// Help implements kong.HelpProvider.
func (importCmd) Help() string {
	return `Nothing is changed where the jobs come from: stop them there once they are here.

  minutehand import crontab crontab --dry-run`
}

type importCrontabCmd struct {
	client
	File     string `arg:"" help:"The crontab, '-' for standard input."`
	DryRun   bool   `help:"Print the jobs, and create none. It needs no server."`
	Timezone string `help:"IANA zone of its times, where it has no CRON_TZ; without it, that of this machine." placeholder:"ZONE"`
	System   bool   `help:"Its sixth field is a user, as in /etc/crontab and /etc/cron.d."`
	URL      string `name:"url" help:"Webhook that runs commands: it is sent {\"command\": …}." placeholder:"URL" group:"Who runs commands:"`
	Kafka    string `help:"Topic of those who run commands." placeholder:"CONNECTION/TOPIC" group:"Who runs commands:"`
	SQS      string `name:"sqs" help:"Queue of those who run commands." placeholder:"CONNECTION/QUEUE" group:"Who runs commands:"`
	Pool     string `help:"Pool of workers that run commands, and the handler." placeholder:"POOL/HANDLER" group:"Who runs commands:"`
}

// Help implements kong.HelpProvider.
func (importCrontabCmd) Help() string {
	return `A line that calls a URL with curl or wget becomes a job that calls it. Of any other line the command becomes the body of a message, with its
variables, input and user, to whom --url, --kafka, --sqs or --pool names. What cannot be translated is listed with its line and the reason, and is not
created. A comment right above a line is the name of its job. Each line has a key of its own, so that it is imported once.

The handler script of minutehand runner runs such commands: --pool POOL/script. They run in its sandbox then, without the files and the network of the
machine, and as no other user.

As cron does, a job lets go what was missed. At the change of daylight saving time it is due once.

  minutehand import crontab crontab --dry-run --timezone Europe/Berlin
  minutehand import crontab crontab --timezone Europe/Berlin --url https://example.com/run
  minutehand import crontab - --dry-run --timezone UTC < crontab     the same from standard input`
}

// Run implements the command.
func (c *importCrontabCmd) Run(ctx context.Context) error {
	how, err := c.how()
	if err != nil {
		return usageError{err}
	}
	text, err := readFile(c.File)
	if err != nil {
		return usageError{fmt.Errorf("cannot read %s: %w", c.File, cause(err))}
	}
	found := readCrontab(text, how)
	if found.assumed && c.Timezone == "" {
		fmt.Fprintf(os.Stderr, "times without a CRON_TZ are taken as those of %s\n", how.timezone)
	}
	if c.DryRun {
		if err := c.printJobs(found.jobs); err != nil {
			return err
		}
		c.leave(found)
		return nil
	}
	results := []batchResult{}
	if len(found.jobs) > 0 {
		if results, err = c.createAll(ctx, found.jobs, ""); err != nil {
			return err
		}
	}
	there := 0
	results = slices.DeleteFunc(results, func(r batchResult) bool {
		known := strings.Contains(string(r.Problem), "key-taken")
		if known {
			there++
		}
		return known
	})
	if there > 0 {
		fmt.Fprintf(os.Stderr, "%d jobs were imported before\n", there)
	}
	c.leave(found)
	return c.tell(results)
}

// how returns how the crontab is read.
func (c *importCrontabCmd) how() (how importing, err error) {
	how = importing{timezone: c.Timezone, system: c.System}
	if how.timezone == "" {
		if how.timezone = localZone(); how.timezone == "" {
			return how, errors.New("the time zone of this machine is not known; name that of the crontab with --timezone")
		}
	} else if _, err := schedule.LoadLocation(how.timezone); err != nil {
		return how, fmt.Errorf("--timezone: %q is not an IANA time zone, such as Europe/Berlin", how.timezone)
	}
	flags := jobFlags{URL: c.URL, Kafka: c.Kafka, SQS: c.SQS, Pool: c.Pool}
	if c.URL+c.Kafka+c.SQS+c.Pool == "" {
		return how, nil
	}
	if err := flags.apply(map[string]any{}); err != nil {
		return how, err
	}
	how.target = func(command map[string]any) map[string]any {
		j := map[string]any{"target": map[string]any{"kind": job.TargetWebhook}}
		_ = flags.apply(j) // it did before
		target := member(j, "target")
		target["body"] = command
		return target
	}
	return how, nil
}

// localZone returns the zone of this machine; "" if that is not known.
func localZone() string {
	if zone := os.Getenv("TZ"); zone != "" {
		return strings.TrimPrefix(zone, ":")
	}
	link, err := filepath.EvalSymlinks("/etc/localtime")
	if err != nil {
		return ""
	}
	_, zone, _ := strings.Cut(link, "/zoneinfo/")
	return strings.TrimPrefix(strings.TrimPrefix(zone, "posix/"), "right/")
}

// leave lists what was not translated.
func (c *importCrontabCmd) leave(found crontab) {
	for _, l := range found.left {
		fmt.Fprintf(os.Stderr, "line %d is left out: %s: %s\n", l.line, l.reason, l.text)
	}
	if n := len(found.left); n > 0 {
		fmt.Fprintf(os.Stderr, "%d lines are left out, %d are jobs\n", n, len(found.jobs))
	}
}

// printJobs prints jobs as they would be created: as YAML, which jobs batch takes.
func (c *importCrontabCmd) printJobs(jobs []map[string]any) error {
	if jobs == nil {
		jobs = []map[string]any{}
	}
	return c.print(jobs, func(w io.Writer) {
		text, err := json.Marshal(jobs) // raw JSON in it becomes values
		var plain any
		if err == nil {
			err = json.Unmarshal(text, &plain)
		}
		if err == nil {
			text, err = yaml.Marshal(plain)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		_, _ = w.Write(text)
	})
}
