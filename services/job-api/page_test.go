package jobapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	jobapi "github.com/minutehand/minutehand/services/job-api"
)

type jobPage struct {
	Items []struct {
		JobID  string `json:"job_id"`
		Target struct{ Body json.RawMessage }
	}
	NextCursor *string `json:"next_cursor"`
}

// createLarge creates jobs that send their targets 200 KB each.
func createLarge(t *testing.T, s *server, n int) {
	t.Helper()
	for i := range n {
		body := fmt.Sprintf(`{"name":"large %d","type":"one_shot","delay":"1h","target":{"kind":"http_webhook","url":"https://t.example/","body":%q}}`,
			i, strings.Repeat("x", 200_000))
		if w := s.do(http.MethodPost, "/jobs", body); w.Code != http.StatusCreated {
			t.Fatalf("%d %.200s", w.Code, w.Body)
		}
	}
}

func TestPageOfJobsEndsAtABudgetOfBytesAndTheNextGoesOnThere(t *testing.T) {
	const jobs = 60
	s := newServer(t, nil)
	createLarge(t, s, jobs)
	page := func(query string) (p jobPage, size int) {
		w := s.do(http.MethodGet, "/jobs?limit=500"+query, "")
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d %.200s %v", w.Code, w.Body, err)
		}
		return p, w.Body.Len()
	}
	seen := map[string]int{}
	pages, cursor := 0, ""
	for {
		p, size := page("&fields=target.body" + cursor)
		if size > 4<<20+300_000 {
			t.Errorf("a page has %d bytes", size)
		}
		pages++
		for _, j := range p.Items {
			seen[j.JobID]++
			if len(j.Target.Body) < 200_000 {
				t.Errorf("%s is shown with a body of %d bytes", j.JobID, len(j.Target.Body))
			}
		}
		if p.NextCursor == nil {
			break
		}
		cursor = "&cursor=" + *p.NextCursor
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s is on %d pages", id, n)
		}
	}
	if len(seen) != jobs || pages < 3 {
		t.Errorf("%d of %d jobs are on %d pages", len(seen), jobs, pages)
	}
	p, size := page("")
	if len(p.Items) != jobs || p.NextCursor != nil || size > jobs*2000 {
		t.Errorf("without bodies a page has %d jobs and %d bytes", len(p.Items), size)
	}
	for _, j := range p.Items {
		if j.Target.Body != nil {
			t.Errorf("%s is shown with a body that nobody asked for", j.JobID)
		}
	}
}

// Until then, what is written for it is held in memory.
func TestClientThatDoesNotReadIsCutOff(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const limit = 300 * time.Millisecond
	s := newServer(t, func(c *jobapi.Config, _ *jobapi.Deps) { c.AnswerLimit = limit })
	createLarge(t, s, 20)
	answered := make(chan struct{}, 1)
	// With small buffers the answer does not fit into the kernel.
	small := func(conn net.Conn, _ http.ConnState) { _ = conn.(*net.TCPConn).SetWriteBuffer(4096) }
	server := &http.Server{ReadHeaderTimeout: time.Minute, ConnState: small, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handler.ServeHTTP(w, r)
		answered <- struct{}{}
	})}
	go server.Serve(listener) //nolint:errcheck // it ends with the test
	defer server.Close()      //nolint:errcheck // nothing is left to do
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is left to do
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	began := time.Now()
	if _, err := io.WriteString(conn, "GET /api/v1/jobs?fields=target.body HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-answered: // although nothing was read
		if took := time.Since(began); took < limit {
			t.Errorf("it was written within %s: this run shows nothing", took)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the answer is still being written")
	}
}
