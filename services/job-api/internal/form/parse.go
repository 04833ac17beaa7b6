package form

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/v1" // semantics of encoding/json, in less than half of the time

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/messaging"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// faultList gathers what a schema cannot say.
type faultList []problem.Fault

func (l *faultList) add(ok bool, pointer, code, message string) {
	if !ok {
		*l = append(*l, problem.Fault{Pointer: pointer, Code: code, Message: message})
	}
}

const notAvailable = "not-available-yet"

// Parse turns a body that the document allows into a definition. It fails with a problem that has every fault. standing is
// the job as it is, nil for a new one: a client may send its secrets back masked, as they were shown.
func Parse(body []byte, now time.Time, standing *job.Job) (b Job, d job.Definition, err error) {
	if err := json.Unmarshal(body, &b); err != nil {
		// The schema accepted it, so it is a number or a text beyond what this build can hold.
		return b, d, problem.New(http.StatusUnprocessableEntity, "invalid-request",
			"A member is beyond what can be held; use a smaller value.",
			problem.Fault{Pointer: "", Code: "out-of-range", Message: "Use a smaller value."})
	}
	d = b.definition(now)
	var faults faultList
	faults.schedule(&b.Schedule, d.Schedule, now)
	if standing == nil {
		standing = &job.Job{}
	}
	faults.unmask("/target/headers", d.Target.Headers, standing.Definition.Target.Headers)
	faults.target(&b.Target, &d.Target)
	faults.policies(&d)
	if b.SLA != nil {
		faults.deadline("/sla/start_within", b.SLA.StartWithin)
		faults.deadline("/sla/finish_within", b.SLA.FinishWithin)
	}
	faults.notify(b.Notify, standing)
	if p := edge.Invalid(faults); p != nil {
		return b, d, p
	}
	return b, d, nil
}

// Parse turns the members into a schedule, as Parse does for a whole job.
func (b *Schedule) Parse(now time.Time) (job.Schedule, error) {
	s := b.resolve(now)
	var faults faultList
	faults.schedule(b, s, now)
	if p := edge.Invalid(faults); p != nil {
		return s, p
	}
	return s, nil
}

// Compile returns the series of occurrences of a job's definition. Its error consists of faults of the schedule, because
// whether an H can ever match may depend on the job's id; see edge.ScheduleFaults.
func Compile(jobID string, d *job.Definition) (*occurrence.Series, error) {
	plan, err := schedule.Compile(d.Schedule, jobID)
	if err != nil {
		return nil, err
	}
	return &occurrence.Series{JobID: jobID, Def: d, Plan: plan}, nil
}

func (l *faultList) schedule(b *Schedule, s job.Schedule, now time.Time) {
	l.add(b.Delay == nil || b.RunAt == nil, "/delay", "conflict", "Give either run_at or delay.")
	l.add(b.Delay == nil || b.Type == job.ScheduleOneShot, "/delay", "conflict", "delay belongs to type one_shot only.")
	if b.Type == job.ScheduleOneShot && b.RunAt == nil && b.Delay == nil {
		l.add(false, "/run_at", "required", "A one_shot needs run_at or delay.")
		return
	}
	l.after(b)
	l.add(b.Spread == "" || b.SpreadWithin != nil, "/spread_within", "required", "Say within which time an occurrence may be moved, 10m for instance.")
	l.add(b.Spread != "" || b.SpreadWithin == nil, "/spread", "required", "Set it to auto, or leave spread_within out.")
	l.add(b.SpreadWithin == nil || *b.SpreadWithin != 0, "/spread_within", "spread", "Use whole milliseconds from 1 second to 1 hour.")
	_, err := schedule.Compile(s, "")
	for _, f := range edge.ScheduleFaults(err) {
		if f.Pointer == "/run_at" && b.Delay != nil {
			f.Pointer = "/delay"
		}
		*l = append(*l, f)
	}
	due := "/run_at"
	if b.Delay != nil {
		due = "/delay"
	}
	l.add(!s.RunAt.After(now.Add(job.MaxHorizon)), due, "horizon", "Must lie within the next 10 years.")
	l.add(!s.StartAt.After(now.Add(job.MaxHorizon)), "/start_at", "horizon", "Must lie within the next 10 years.")
}

// after checks what a job follows, as far as that can be told without looking at other jobs.
func (l *faultList) after(b *Schedule) {
	l.add(b.Type == job.ScheduleAfter || b.AfterMode == "", "/after_mode", "conflict", "after_mode belongs to type after only.")
	l.add(b.Type != job.ScheduleAfter || len(b.After) < 2 || b.AfterMode != "", "/after_mode", "required",
		"Say whether it follows any execution of one of these jobs (any), or once for each instant of which all had one (all).")
}

// reserved are the headers that Minutehand, or HTTP itself, sets.
func reserved(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer",
		"proxy-authorization", "proxy-connection", "idempotency-key", "traceparent", "tracestate":
		return true
	}
	return strings.HasPrefix(name, "minutehand-") || strings.HasPrefix(name, "webhook-")
}

func (l *faultList) target(b *target, t *job.Target) {
	const at = "/target"
	// of lets a member stand with its kinds only.
	of := func(given bool, member string, kinds ...string) {
		if given && !slices.Contains(kinds, t.Kind) {
			l.add(false, at+"/"+member, "conflict", member+" belongs to targets of kind "+strings.Join(kinds, " or ")+".")
		}
	}
	of(b.URL != "", "url", job.TargetWebhook)
	of(b.Method != "", "method", job.TargetWebhook)
	of(b.Connection != "", "connection", job.TargetKafka, job.TargetSQS)
	of(b.Topic != "", "topic", job.TargetKafka)
	of(b.Key != "", "key", job.TargetKafka)
	of(b.Queue != "", "queue", job.TargetSQS)
	of(b.Group != "", "group", job.TargetSQS)
	of(b.Pool != "", "pool", job.TargetPool)
	of(b.Handler != "", "handler", job.TargetPool)
	of(b.Heartbeat != nil, "heartbeat_timeout", job.TargetPool)
	if r := b.BodyRef; r != nil {
		of(true, "body_ref", job.TargetWebhook, job.TargetPool)
		l.add(len(t.Body) == 0, at+"/body_ref", "conflict", twoBodies)
		l.address(at+"/body_ref/url", r.URL)
	}
	switch t.Kind {
	case job.TargetWebhook:
		l.webhook(at, t.URL, t.Headers)
	case job.TargetKafka:
		l.add(t.Connection != "", at+"/connection", "required", "Name the connection to the cluster.")
		l.add(b.Topic != "", at+"/topic", "required", "Name the topic.")
		l.add(b.Topic != "." && b.Topic != "..", at+"/topic", "reserved", "Kafka has no such topic.")
		l.headers(at, t.Headers)
	case job.TargetSQS:
		l.sqs(at, b, t)
	case job.TargetPool:
		l.task(at, t)
		return
	}
	l.add(len(t.Body) <= job.MaxPayloadBytes, at+"/body", "too-large", "The body may have at most 262144 bytes.")
	l.add(t.Timeout > 0 && t.Timeout <= job.MaxTimeout, at+"/timeout", "range", "Must be more than 0 and at most 5m.")
}

// task checks what a task of a pool needs.
func (l *faultList) task(at string, t *job.Target) {
	l.add(t.Pool != "", at+"/pool", "required", "Name the pool whose workers fetch the task.")
	l.add(t.Handler != "", at+"/handler", "required", "Name what a worker does with the task.")
	l.headers(at, t.Headers)
	l.add(len(t.Body) <= job.MaxPayloadBytes, at+"/body", "too-large", "The body may have at most 262144 bytes.")
	l.add(t.Timeout > 0 && t.Timeout <= job.MaxTaskTimeout, at+"/timeout", "range", "Must be more than 0 and at most 24h.")
	l.add(t.Heartbeat >= job.MinHeartbeat && t.Heartbeat <= job.MaxHeartbeat, at+"/heartbeat_timeout", "range", "Must be at least 5s and at most 10m.")
}

// attributeName matches what SQS takes as the name of an attribute.
var attributeName = regexp.MustCompile(`^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$`)

// sqs checks what a message on a queue of SQS needs.
func (l *faultList) sqs(at string, b *target, t *job.Target) {
	l.add(t.Connection != "", at+"/connection", "required", "Name the connection to the account.")
	l.add(b.Queue != "", at+"/queue", "required", "Name the queue.")
	l.add(b.Group == "" || strings.HasSuffix(b.Queue, ".fifo"), at+"/group", "conflict", "A group belongs to a FIFO queue, whose name ends in .fifo.")
	l.add(len(t.Body) > 0, at+"/body", "required", "SQS takes no message without a body.")
	l.headers(at, t.Headers)
	l.add(len(t.Headers) <= messaging.MaxAttributes, at+"/headers", "too-many", "A message has at most two attributes besides those of Minutehand.")
	for name, value := range t.Headers {
		lower := strings.ToLower(name)
		l.add(attributeName.MatchString(name) && !strings.HasPrefix(lower, "aws.") && !strings.HasPrefix(lower, "amazon."), at+"/headers", "attribute-name",
			"The name of an attribute has letters, digits, hyphens, underscores and single dots, and does not begin with AWS. or Amazon.")
		l.add(value != "", at+"/headers", "required", "SQS takes no empty attribute; leave it out.")
	}
}

// webhook checks what a call needs, at a place.
func (l *faultList) webhook(at, address string, headers map[string]string) {
	l.address(at+"/url", address)
	l.headers(at, headers)
}

// address checks a URL that executors or workers call.
func (l *faultList) address(at, address string) {
	u, err := url.Parse(address)
	l.add(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil &&
		u.Fragment == "" && validPort(u.Port()), at, "url",
		"Must be an absolute http or https URL without user name, password or fragment.")
}

const twoBodies = "Give either body or body_ref."

// OneBody refuses a definition that has both a body and an object in its place.
func OneBody(d *job.Definition) error {
	if d.Target.BodyRef == nil || len(d.Target.Body) == 0 {
		return nil
	}
	return edge.Invalid([]problem.Fault{{Pointer: "/target/body_ref", Code: "conflict", Message: twoBodies}})
}

// headers checks the headers of a call or a message, at a place.
func (l *faultList) headers(at string, headers map[string]string) {
	size := 0
	for name, value := range headers {
		size += len(name) + len(value)
		l.add(!reserved(name), at+"/headers", "reserved-header",
			"A header is set by Minutehand or by HTTP itself; leave it out.")
	}
	l.add(size <= job.MaxHeaderBytes, at+"/headers", "too-large", "All headers together may have at most 8192 bytes.")
}

func validPort(port string) bool {
	if port == "" {
		return true
	}
	n := 0
	for _, c := range port {
		n = n*10 + int(c-'0')
		if c < '0' || c > '9' || n > 65535 {
			return false
		}
	}
	return n > 0
}

func (l *faultList) deadline(pointer string, given *duration) {
	d := durationOf(given, job.MinDeadline)
	l.add(d >= job.MinDeadline && d <= job.MaxDeadline, pointer, "range", "Must be at least 1s and at most 24h.")
}

func (l *faultList) policies(d *job.Definition) {
	r := d.Retry
	if err := job.CheckKeyTemplate(d.Target.KeyTemplate, d.Schedule.Type); d.Target.KeyTemplate != "" && err != nil {
		l.add(false, "/idempotency_key_template", "invalid-template", "The template "+err.Error()+".")
	}
	l.add(d.Priority == string(job.PriorityNormal) || d.Target.Kind == job.TargetPool, "/priority", "conflict",
		"A priority orders the tasks of a pool; leave it out.")
	l.add(d.Overlap == job.OverlapAllowAll || d.Precision != job.PrecisionPrecise, "/overlap_policy", "conflict",
		"What is in progress is looked up at the instant, which takes longer than precise allows; ask for fast, or for allow_all.")
	l.add(d.Overlap == job.OverlapAllowAll || d.Schedule.Type != job.ScheduleOneShot, "/overlap_policy", "conflict",
		"A one_shot is called once, so nothing overlaps; leave overlap_policy out.")
	l.add(d.Overlap == job.OverlapAllowAll || d.Schedule.Type != job.ScheduleAfter, "/overlap_policy", "conflict",
		"What follows other jobs may overlap; leave overlap_policy out.")
	l.add(d.Deadlines == (job.Deadlines{}) || d.Schedule.Type != job.ScheduleAfter, "/sla", "conflict",
		"Deadlines count from the instants of a schedule, and a job that follows others has none; give them to the first of these.")
	l.add(r.BaseDelay > 0 || r.Backoff == job.BackoffList, "/retry_policy/base_delay", "range", "Must be more than 0.")
	l.add(r.MaxDelay >= r.BaseDelay, "/retry_policy/max_delay", "range", "Must be at least base_delay.")
	l.add(r.Window > 0 && r.Window <= 30*24*time.Hour, "/retry_policy/window", "range", "Must be more than 0 and at most 720h.")
	l.add(r.Backoff != job.BackoffList || len(r.Delays) > 0, "/retry_policy/delays", "required",
		"The backoff list needs at least one delay.")
	l.add(r.Backoff == job.BackoffList || len(r.Delays) == 0, "/retry_policy/delays", "conflict",
		"delays belong to the backoff list only.")
	l.add(d.CatchUpWindow >= time.Second && d.CatchUpWindow <= 30*24*time.Hour, "/catch_up_window", "range",
		"Must be at least 1s and at most 720h.")
}
