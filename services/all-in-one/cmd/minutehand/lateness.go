package main

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// mostSamples bounds the latenesses that the sink keeps until they are asked for; of more than these it keeps a fair choice.
	mostSamples = 2000
	// mostSeen bounds the executions by which the sink knows a duplicate.
	mostSeen = 2_000_000
)

// counts is what a sink says of itself at /_stats, for load generators: they take its samples into a trend of theirs.
type counts struct {
	mu         sync.Mutex
	received   int64
	duplicates int64
	early      int64
	seen       map[string]bool
	// since counts the calls since the samples were taken, of which samples are a fair choice.
	since   int64
	samples []float64
}

// note counts a call, and how late it came: negative if it was early.
func (c *counts) note(r *http.Request, at time.Time) {
	due, err := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For"))
	attempt := r.Header.Get("Idempotency-Key") + "/" + r.Header.Get("Minutehand-Attempt")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received++
	if err != nil {
		return
	}
	if c.seen == nil {
		c.seen = map[string]bool{}
	}
	if c.seen[attempt] {
		c.duplicates++
		return
	}
	if len(c.seen) < mostSeen {
		c.seen[attempt] = true
	}
	if r.Header.Get("Minutehand-Attempt") != "1" {
		return // a retry comes when it was to come
	}
	late := float64(at.Sub(due).Microseconds()) / 1000
	if late < 0 {
		c.early++
	}
	c.since++
	if len(c.samples) < mostSamples {
		c.samples = append(c.samples, late)
	} else if i := rand.Int64N(c.since); i < mostSamples {
		c.samples[i] = late
	}
}

func (c *counts) all() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received
}

// ServeHTTP answers with the counts, and with the latenesses in milliseconds since the last time that ?samples= asked for some.
func (c *counts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	most, _ := strconv.Atoi(r.URL.Query().Get("samples"))
	c.mu.Lock()
	answer := map[string]any{"received": c.received, "duplicates": c.duplicates, "early": c.early}
	if most > 0 {
		answer["lateness_ms"] = c.samples[:min(most, len(c.samples))]
		c.samples, c.since = nil, 0
	}
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}
