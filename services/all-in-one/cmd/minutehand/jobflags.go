package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/minutehand/minutehand/libs/job"
)

// jobFlags are the parts of a job that flags can say.
type jobFlags struct {
	File          string            `short:"f" help:"Job as JSON or YAML, '-' for standard input; flags go before what it says." placeholder:"FILE"`
	Name          string            `help:"Name of the job." placeholder:"NAME"`
	Delay         string            `help:"Fire once, this long from now." placeholder:"30s" group:"When:"`
	RunAt         string            `help:"Fire once, at this instant." placeholder:"RFC3339" group:"When:"`
	Cron          string            `help:"Fire by this cron expression." placeholder:"EXPR" group:"When:"`
	Timezone      string            `help:"IANA zone of the cron expression." placeholder:"ZONE" group:"When:"`
	Every         string            `help:"Fire at this interval." placeholder:"15m" group:"When:"`
	After         []string          `sep:";" help:"Fire when an execution of a job, named by its id or key:KEY, has ended: with success, which is the default, failure or any." placeholder:"JOB[=END]" group:"When:"`
	AfterMode     string            `name:"after-mode" help:"With several --after: follow each of them (any), or once all had the same instant (all)." placeholder:"MODE" group:"When:"`
	StartAt       string            `help:"Not before this instant." placeholder:"RFC3339" group:"When:"`
	EndAt         string            `help:"Not from this instant on." placeholder:"RFC3339" group:"When:"`
	Occurrences   int               `name:"max-occurrences" help:"This often at most." placeholder:"N" group:"When:"`
	Jitter        string            `help:"Spread each occurrence over this long." placeholder:"30s" group:"When:"`
	Spread        string            `help:"Move occurrences at full hours of UTC, where most jobs are, by a time of the job's own within this long." placeholder:"10m" group:"When:"`
	URL           string            `name:"url" help:"Webhook to call." placeholder:"URL" group:"What:"`
	Kafka         string            `help:"Topic to send a record to, over a connection." placeholder:"CONNECTION/TOPIC" group:"What:"`
	SQS           string            `name:"sqs" help:"Queue to send a message to, over a connection." placeholder:"CONNECTION/QUEUE" group:"What:"`
	Pool          string            `help:"Pool of workers that fetch the task, and what they do with it." placeholder:"POOL/HANDLER" group:"What:"`
	Priority      string            `help:"Which tasks of the pool are fetched first: high, normal or low." placeholder:"LEVEL" group:"What:"`
	MessageKey    string            `name:"message-key" help:"Key of the record, or group of the message on a FIFO queue; the id of the job if there is none." placeholder:"TEXT" group:"What:"`
	Method        string            `help:"Method of the call; POST if there is none." placeholder:"METHOD" group:"What:"`
	Body          string            `help:"JSON body of the call, message or task." placeholder:"JSON" group:"What:"`
	Header        map[string]string `help:"Header of the call, message or task." placeholder:"NAME=VALUE" group:"What:"`
	Timeout       string            `help:"How long a call, message or task may take." placeholder:"30s" group:"What:"`
	KeyTemplate   string            `name:"idempotency-key-template" help:"Idempotency-Key of its calls, with {run_at}, {execution_id} or {job_id}; the execution's id if there is none." placeholder:"TEXT" group:"What:"`
	Precision     string            `help:"How close to its instant it is called: standard (2s), fast (250ms) or precise (1ms)." placeholder:"TIER" group:"When:"`
	Label         map[string]string `help:"Label to find the job by." placeholder:"NAME=VALUE" group:"What:"`
	Owner         string            `help:"Who is to be told when a deadline is missed." placeholder:"TEXT" group:"What:"`
	Notify        map[string]string `help:"Webhook to call when something is wrong: on dead_letter, sla_missed, paused_by_410 or recovered." placeholder:"CAUSE=URL" group:"When it fails, or comes late:"`
	StartWithin   string            `name:"start-within" help:"Deadline for the first call, from its instant on." placeholder:"30s" group:"When it fails, or comes late:"`
	FinishWithin  string            `name:"finish-within" help:"Deadline for a call that succeeds, from its instant on." placeholder:"10m" group:"When it fails, or comes late:"`
	MaxAttempts   int               `help:"Attempts at most, the first included." placeholder:"N" group:"When it fails, or comes late:"`
	RetryDelay    string            `help:"Pause before the second attempt." placeholder:"10s" group:"When it fails, or comes late:"`
	Backoff       string            `help:"How pauses grow: exponential, linear or fixed." placeholder:"KIND" group:"When it fails, or comes late:"`
	MissedRun     string            `name:"missed-run-policy" help:"What becomes of occurrences that came too late: skip, fire_once or backfill." placeholder:"POLICY" group:"When it fails, or comes late:"`
	Overlap       string            `name:"overlap-policy" help:"What becomes of an occurrence while another execution is in progress: allow_all, skip, buffer_one, buffer_all, cancel_other or terminate_other." placeholder:"POLICY" group:"When it fails, or comes late:"`
	CatchUpWindow string            `help:"How late an occurrence may still fire." placeholder:"1m" group:"When it fails, or comes late:"`
}

// errNothing is told when neither a flag nor a file says anything.
var errNothing = errors.New("give at least one flag that says what, or a file with -f")

var errOneTarget = errors.New("give only one of --url, --kafka, --sqs and --pool")

// apply writes what the flags say over a job, or over a patch of one.
func (f *jobFlags) apply(body map[string]any) error {
	given := 0
	for _, s := range []struct{ value, kind, member string }{
		{f.Delay, "one_shot", "delay"}, {f.RunAt, "one_shot", "run_at"}, {f.Cron, "cron", "cron_expr"}, {f.Every, "interval", "every"},
	} {
		if s.value != "" {
			given++
			body["type"], body[s.member] = s.kind, s.value
		}
	}
	if len(f.After) > 0 {
		given++
		body["type"], body["after"] = "after", after(f.After)
	}
	if given > 1 {
		return errors.New("give only one of --delay, --run-at, --cron, --every and --after")
	}
	set(body, "after_mode", f.AfterMode, "name", f.Name, "timezone", f.Timezone, "start_at", f.StartAt, "end_at", f.EndAt, "jitter", f.Jitter, "spread", auto(f.Spread), "spread_within", f.Spread,
		"missed_run_policy", f.MissedRun, "overlap_policy", f.Overlap, "catch_up_window", f.CatchUpWindow, "precision", f.Precision, "priority", f.Priority, "owner", f.Owner, "idempotency_key_template", f.KeyTemplate)
	if f.Occurrences != 0 {
		body["max_occurrences"] = f.Occurrences
	}
	target, retry, labels, deadlines := member(body, "target"), member(body, "retry_policy"), member(body, "labels"), member(body, "sla")
	set(deadlines, "start_within", f.StartWithin, "finish_within", f.FinishWithin)
	if err := f.queue(target); err != nil {
		return err
	}
	set(target, "url", f.URL, "method", f.Method, "timeout", f.Timeout)
	set(retry, "base_delay", f.RetryDelay, "backoff", f.Backoff)
	if f.MaxAttempts != 0 {
		retry["max_attempts"] = f.MaxAttempts
	}
	for name, value := range f.Label {
		labels[name] = value
	}
	if len(f.Header) > 0 {
		headers := member(target, "headers")
		for name, value := range f.Header {
			headers[name] = value
		}
		target["headers"] = headers
	}
	if list := notify(f.Notify); list != nil {
		body["notify"] = list
	}
	if f.Body != "" {
		if !json.Valid([]byte(f.Body)) {
			return errors.New("--body is not JSON; a text is written '\"like this\"'")
		}
		target["body"] = json.RawMessage(f.Body)
	}
	for name, value := range map[string]map[string]any{"target": target, "retry_policy": retry, "labels": labels, "sla": deadlines} {
		if len(value) > 0 {
			body[name] = value
		}
	}
	return nil
}

// queue sets the topic or queue to which the job sends, or the pool of its tasks, if the flags name one.
func (f *jobFlags) queue(target map[string]any) error {
	if f.Pool != "" {
		pool, handler, ok := strings.Cut(f.Pool, "/")
		if f.URL+f.Kafka+f.SQS != "" {
			return errOneTarget
		}
		if !ok || pool == "" || handler == "" {
			return errors.New("--pool must be a pool, a slash and a handler, such as reports/generate")
		}
		target["kind"] = job.TargetPool
		set(target, "pool", pool, "handler", handler)
		return nil
	}
	kind, flag, to, key := job.TargetKafka, f.Kafka, "topic", "key"
	if f.SQS != "" {
		kind, flag, to, key = job.TargetSQS, f.SQS, "queue", "group"
	}
	switch {
	case f.Kafka != "" && f.SQS != "" || flag != "" && f.URL != "":
		return errOneTarget
	case flag == "" && f.MessageKey != "":
		return errors.New("--message-key needs --kafka or --sqs")
	case flag == "":
		return nil
	}
	connection, name, ok := strings.Cut(flag, "/")
	if !ok || connection == "" || name == "" {
		return fmt.Errorf("--%s must be a connection, a slash and a %s, such as orders/runs", kind, to)
	}
	target["kind"] = kind
	set(target, "connection", connection, to, name, key, f.MessageKey)
	return nil
}

// set sets members to the values that are not empty.
func set(object map[string]any, pairs ...string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			object[pairs[i]] = pairs[i+1]
		}
	}
}

// member is a copy of the object that a member of another one is, empty if it is none.
func member(object map[string]any, name string) map[string]any {
	m, _ := object[name].(map[string]any)
	if m = maps.Clone(m); m == nil {
		m = map[string]any{}
	}
	return m
}

// after returns the jobs that one follows, each with its end if that is named.
func after(jobs []string) (list []any) {
	for _, named := range jobs {
		job, end, ends := strings.Cut(named, "=")
		parent := map[string]any{"job": job}
		if ends {
			parent["on"] = end
		}
		list = append(list, parent)
	}
	return list
}

// notify returns whom a job tells, from URLs by cause.
func notify(byCause map[string]string) (list []any) {
	byURL := map[string][]string{}
	for _, cause := range slices.Sorted(maps.Keys(byCause)) {
		byURL[byCause[cause]] = append(byURL[byCause[cause]], cause)
	}
	for _, url := range slices.Sorted(maps.Keys(byURL)) {
		list = append(list, map[string]any{"on": byURL[url], "target": map[string]any{"kind": "http_webhook", "url": url}})
	}
	return list
}

// auto returns the spread of a job that may be moved within a time; "" for none.
func auto(within string) string {
	if within == "" {
		return ""
	}
	return "auto"
}
