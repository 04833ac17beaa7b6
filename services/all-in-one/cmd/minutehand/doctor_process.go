package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/diagnosis"
)

const (
	// processWithin bounds how long a process may take to answer.
	processWithin = 5 * time.Second
	// maxMetrics bounds what is read of a process's metrics.
	maxMetrics = 16 << 20
	// soonExpired is from when on a certificate is told of.
	soonExpired = 14 * 24 * time.Hour
	// littleDisk is the share of a disk that is to be free, and leastDisk how many bytes must be.
	littleDisk = 0.1
	leastDisk  = 1e9
)

// build is what a process runs.
type build struct{ version, timeZones string }

// fetcher gets a URL.
type fetcher func(ctx context.Context, url string) (*http.Response, error)

func fetch(ctx context.Context, url string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(r) //nolint:gosec // the operator names it
}

// api examines the API, and all of one process.
func (c *doctorCmd) api(ctx context.Context, r *diagnosis.Report) {
	caller, err := c.caller()
	if err != nil {
		r.Wrong("api "+c.Server, "", "%v", err)
		return
	}
	get := func(ctx context.Context, url string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		if err := c.authorize(req); err != nil {
			return nil, err
		}
		return caller.Do(req) //nolint:gosec // the operator names it
	}
	subject, server := "api "+c.Server, strings.TrimSuffix(c.Server, "/")
	if c.OneProcess {
		examineProcess(ctx, subject, server, get, r)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, processWithin)
	defer cancel()
	before := time.Now()
	resp, err := get(ctx, server+"/api/v1/jobs?limit=1")
	if err != nil {
		r.Wrong(subject, "start job-api, or name the API with --server", "it does not answer: %v", cause(err))
		return
	}
	defer resp.Body.Close()
	after := time.Now()
	switch {
	case resp.StatusCode >= http.StatusInternalServerError:
		r.Wrong(subject, "runbooks/MinutehandAPIFails.md", "it answers %s", resp.Status)
	case resp.StatusCode >= http.StatusBadRequest:
		r.Notice(subject, "name a credential with --auth-token-file", "it answers %s", resp.Status)
	default:
		r.Fine(subject, "it answers within %s", after.Sub(before).Round(time.Millisecond))
	}
}

// examineProcess examines what a process tells about itself, and returns what it runs.
func examineProcess(ctx context.Context, subject, at string, get fetcher, r *diagnosis.Report) (b build) {
	ctx, cancel := context.WithTimeout(ctx, processWithin)
	defer cancel()
	before := time.Now()
	resp, err := get(ctx, at+"/readyz")
	after := time.Now()
	if err != nil {
		r.Wrong(subject, "runbooks/MinutehandServiceDown.md", "it does not answer: %v", cause(err))
		return b
	}
	var ready struct {
		Missing []string `json:"missing"`
	}
	_ = json.NewDecoder(io.LimitReader(resp.Body, maxMetrics)).Decode(&ready) // an answer of something else is told by its status
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		r.Wrong(subject, "bring back what it lacks; it goes on by itself", "it is not ready (%s): it lacks %s", resp.Status, strings.Join(ready.Missing, ", "))
	}
	if theirs, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		r.Clock(subject, theirs.Add(time.Second/2), before, after, time.Second/2)
	}
	resp, err = get(ctx, at+"/metrics")
	if err != nil {
		r.Notice(subject, "", "its metrics cannot be read: %v", cause(err))
		return b
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics))
	if err != nil || resp.StatusCode != http.StatusOK {
		r.Notice(subject, "name a credential with --auth-token-file", "its metrics cannot be read: %s", resp.Status)
		return b
	}
	m := metricsOf(string(text))
	for _, one := range m["minutehand_build_info"] {
		b = build{one.labels["version"], one.labels["tzdata"]}
		r.Fine(subject, "it runs version %s, with time zones %s", b.version, b.timeZones)
	}
	for _, one := range m["minutehand_bucket_loader_other_time_zone_data"] {
		r.Notice(subject, "minutehand tzdata apply, when all processes have the new data (runbooks/time-zone-data.md)",
			"jobs were planned by time zone data %s, and it has another release", one.labels["planned_by"])
	}
	m.certificates(subject, r)
	m.disk(subject, r)
	return b
}

// sample is one series of a metric.
type sample struct {
	labels map[string]string
	value  float64
}

type metricSamples map[string][]sample

var (
	sampleLine  = regexp.MustCompile(`(?m)^(minutehand_\w+)(?:\{([^}]*)\})? (\S+)$`)
	sampleLabel = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

func metricsOf(text string) metricSamples {
	m := metricSamples{}
	for _, line := range sampleLine.FindAllStringSubmatch(text, -1) {
		value, err := strconv.ParseFloat(line[3], 64)
		if err != nil {
			continue
		}
		one := sample{map[string]string{}, value}
		for _, l := range sampleLabel.FindAllStringSubmatch(line[2], -1) {
			one.labels[l[1]] = l[2]
		}
		m[line[1]] = append(m[line[1]], one)
	}
	return m
}

func (m metricSamples) certificates(subject string, r *diagnosis.Report) {
	for _, one := range m["minutehand_certificate_expires_timestamp_seconds"] {
		const do = "replace the file; it is read again without a restart (runbooks/MinutehandCertificateExpires.md)"
		setting, at := one.labels["setting"], time.Unix(int64(one.value), 0).UTC()
		switch left := time.Until(at); {
		case left <= 0:
			r.Wrong(subject, do, "the certificate of %s has expired on %s", setting, at.Format(time.DateOnly))
		case left < soonExpired:
			r.Wrong(subject, do, "the certificate of %s expires on %s", setting, at.Format(time.DateTime))
		default:
			r.Fine(subject, "the certificate of %s is valid until %s", setting, at.Format(time.DateOnly))
		}
	}
}

func (m metricSamples) disk(subject string, r *diagnosis.Report) {
	for i, free := range m["minutehand_store_disk_free_bytes"] {
		size := m["minutehand_store_disk_size_bytes"]
		if i >= len(size) {
			return
		}
		const do = "make room (runbooks/MinutehandDiskFull.md)"
		text := fmt.Sprintf("%.1f of %.1f GB of its disk are free", free.value/1e9, size[i].value/1e9)
		switch {
		case free.value < leastDisk:
			r.Wrong(subject, do, "%s", text)
		case free.value < littleDisk*size[i].value:
			r.Notice(subject, do, "%s", text)
		default:
			r.Fine(subject, "%s", text)
		}
	}
}
