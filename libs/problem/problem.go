// Package problem defines the form in which every error leaves the API: RFC 9457 problem documents. It promises never to repeat a
// submitted value.
package problem

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// ContentType is that of a problem document.
const ContentType = "application/problem+json"

// typeBase begins the type of every problem.
const typeBase = "https://minutehand.dev/problems/"

// Problem is a problem document.
type Problem struct {
	Type   string  `json:"type"`
	Title  string  `json:"title"`
	Status int     `json:"status"`
	Detail string  `json:"detail"`
	Errors []Fault `json:"errors,omitempty"`
	// RetryAfter is sent in the header, unless it is 0.
	RetryAfter time.Duration `json:"-"`
}

// Fault is one thing that is wrong with a request.
type Fault struct {
	// Pointer is a JSON pointer into the body, or /query/NAME, /path/NAME, /header/NAME.
	Pointer string `json:"pointer"`
	Code    string `json:"code"`
	// Message is a sentence that says what to do.
	Message string `json:"message"`
}

// New returns a problem; kind is the last part of its type, in kebab-case.
func New(status int, kind, detail string, faults ...Fault) *Problem {
	return &Problem{
		Type: typeBase + kind, Title: http.StatusText(status), Status: status, Detail: detail, Errors: faults,
	}
}

// Unavailable returns a problem which says that a server behind the API is away, what that means for the request, and when to try
// again.
func Unavailable(advice string) *Problem {
	p := New(http.StatusServiceUnavailable, "unavailable", "A server that this request needs does not answer. "+advice)
	p.RetryAfter = 2 * time.Second
	return p
}

// Full returns a problem which says that the store has no room, and when to try again.
func Full() *Problem {
	p := New(http.StatusServiceUnavailable, "disk-full",
		"The store's disk is nearly full, so nothing new is taken. What was accepted before is carried out; try again later.")
	p.RetryAfter = 30 * time.Second
	return p
}

// Error implements error.
func (p *Problem) Error() string { return p.Title + ": " + p.Detail }

// Write answers a request with the problem.
func (p *Problem) Write(w http.ResponseWriter) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", ContentType)
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(p.RetryAfter.Seconds())))
	}
	w.WriteHeader(p.Status)
	_, err = w.Write(body)
	return err
}
