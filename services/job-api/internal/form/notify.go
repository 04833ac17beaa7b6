package form

import (
	"slices"
	"strconv"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// notify holds the members of whom a job tells of what.
type notify struct {
	On     []job.Cause `json:"on"`
	Target Recipient   `json:"target"`
	Quiet  *duration   `json:"quiet_period,omitempty"`
}

// Recipient holds the members of who is told, or of where a replay goes.
type Recipient struct {
	Kind    string            `json:"kind"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// Notifies returns whom the job tells of what.
func (b *Job) Notifies() (list []job.Notify) {
	for _, n := range b.Notify {
		list = append(list, job.Notify{
			On: n.On, Quiet: durationOf(n.Quiet, job.DefaultQuiet), Target: job.Target{Kind: n.Target.Kind, URL: n.Target.URL, Headers: n.Target.Headers},
		})
	}
	return list
}

// notify checks whom a job tells, and puts secrets back that were shown masked.
func (l *faultList) notify(list []notify, standing *job.Job) {
	seen := map[string]bool{}
	for i := range list {
		n, at := &list[i], "/notify/"+strconv.Itoa(i)
		var former map[string]string
		for k := range standing.Notify {
			if t := &standing.Notify[k].Target; t.URL == n.Target.URL {
				former = t.Headers
			}
		}
		l.unmask(at+"/target/headers", n.Target.Headers, former)
		l.add(len(n.On) > 0, at+"/on", "required", "Name at least one cause.")
		l.add(len(slices.Compact(slices.Sorted(slices.Values(n.On)))) == len(n.On), at+"/on", "duplicate", "Name each cause once.")
		l.add(!slices.Equal(n.On, []job.Cause{job.CauseRecovered}), at+"/on", "conflict", "recovered tells that what was told is over; name what is to be told, too.")
		quiet := durationOf(n.Quiet, job.DefaultQuiet)
		l.add(quiet >= job.MinQuiet && quiet <= job.MaxQuiet, at+"/quiet_period", "range", "Must be at least 1m and at most 24h.")
		if n.Target.Kind != job.TargetWebhook {
			l.add(false, at+"/target/kind", notAvailable, "Only http_webhook is available here yet; the other kinds are on their way.")
			continue
		}
		l.webhook(at+"/target", n.Target.URL, n.Target.Headers)
		l.add(!seen[n.Target.URL], at+"/target/url", "duplicate", "Another item has this URL; name all causes there.")
		seen[n.Target.URL] = true
	}
}

// Elsewhere returns where a replay goes whose request has the recipient as its target; nil for none.
func (b *Recipient) Elsewhere() (*job.Elsewhere, error) {
	if b == nil {
		return nil, nil
	}
	var faults faultList
	faults.add(b.Kind == job.TargetWebhook, "/target/kind", notAvailable, "Only http_webhook is available here yet; the other kinds are on their way.")
	faults.unmask("/target/headers", b.Headers, nil)
	faults.webhook("/target", b.URL, b.Headers)
	if len(faults) > 0 {
		return nil, edge.Invalid(faults)
	}
	return &job.Elsewhere{URL: b.URL, Headers: b.Headers}, nil
}

// RecipientOf returns where a replay goes as answers show it, with secrets masked; nil for nowhere else.
func RecipientOf(x *job.Elsewhere) *Recipient {
	if x == nil {
		return nil
	}
	return &Recipient{Kind: job.TargetWebhook, URL: x.URL, Headers: masked(x.Headers)}
}

// notifies returns whom a job tells as answers show it, with secrets masked.
func notifies(list []job.Notify) (shown []notify) {
	for i := range list {
		n := &list[i]
		shown = append(shown, notify{
			On: n.On, Quiet: text(n.Quiet), Target: Recipient{Kind: n.Target.Kind, URL: n.Target.URL, Headers: masked(n.Target.Headers)},
		})
	}
	return shown
}
