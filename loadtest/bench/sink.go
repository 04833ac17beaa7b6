package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// tally is what the sink has seen since it was last reset.
type tally struct {
	Count int `json:"count"`
	Early int `json:"early"`
	// Doubled counts the calls of an execution that was called before.
	Doubled int `json:"doubled"`
	// Last is when the last call arrived, Late how late each was, in microseconds.
	Last time.Time `json:"last"`
	Late []int64   `json:"late"`
	// Latest is the execution that was latest.
	Latest string `json:"latest"`
	most   time.Duration
}

// tallies are kept by kind, which is the rest of a call's path.
type tallies struct {
	mu     sync.Mutex
	byKind map[string]*tally
	seen   map[string]bool
}

func (s *tallies) of(kind string) *tally {
	if s.byKind[kind] == nil {
		s.byKind[kind] = &tally{}
	}
	return s.byKind[kind]
}

// hook counts a call.
func (s *tallies) hook(_ http.ResponseWriter, r *http.Request) {
	now := time.Now()
	due, err := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For"))
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.of(r.PathValue("kind"))
	id := r.Header.Get("Webhook-Id")
	if s.seen[id] {
		t.Doubled++
		return
	}
	s.seen[id] = true
	t.Count++
	t.Last = now
	if err != nil {
		return
	}
	late := now.Sub(due)
	if t.Late = append(t.Late, late.Microseconds()); late > t.most {
		t.Latest, t.most = id, late
	}
	if late < 0 {
		t.Early++
	}
}

func (s *tallies) tell(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shown := *s.of(r.URL.Query().Get("kind"))
	if r.URL.Query().Get("late") == "" {
		shown.Late = nil
	}
	_ = json.NewEncoder(w).Encode(shown)
}

func (s *tallies) reset(http.ResponseWriter, *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.byKind)
	clear(s.seen)
}

// runSink answers 200 to everything and keeps tallies, which GET /tally returns and POST /reset clears. On a second address
// it never answers.
func runSink(ctx context.Context) error {
	s := &tallies{byKind: map[string]*tally{}, seen: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/hook", s.hook)
	mux.HandleFunc("/hook/{kind}", s.hook)
	mux.HandleFunc("/shaky", func(w http.ResponseWriter, r *http.Request) { // fails at first
		if r.Header.Get("Minutehand-Attempt") == "1" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		s.hook(w, r)
	})
	mux.HandleFunc("GET /tally", s.tell)
	mux.HandleFunc("GET /cpu", tellCPU)
	mux.HandleFunc("POST /reset", s.reset)
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the listener lives as long as the process
	if err != nil {
		return err
	}
	hanging, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // as above
	if err != nil {
		return err
	}
	fmt.Printf("http://%s http://%s\n", listener.Addr(), hanging.Addr())
	serveSink(ctx, mux, listener, hanging)
	return nil
}

// tellCPU answers with the CPU time that this process has used, in seconds.
func tellCPU(w http.ResponseWriter, _ *http.Request) {
	used, err := cpuOf(os.Getpid())
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(used)
}

// serveSink serves on one listener, and never answers on the other, until ctx ends.
func serveSink(ctx context.Context, mux http.Handler, listener, hanging net.Listener) {
	// Longer than the executor keeps a connection that it does not use.
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 2 * time.Minute}
	never := &http.Server{ReadHeaderTimeout: 2 * time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})}
	go func() { <-ctx.Done(); _, _ = server.Close(), never.Close() }()
	go func() { _ = never.Serve(hanging) }()
	_ = server.Serve(listener)
}

// startSink starts the sink, and returns its address and the address that hangs.
func startSink(ctx context.Context) (target, hanging string, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd, err := self(ctx, "-sink")
	if err != nil {
		cancel()
		return "", "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return "", "", nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	target, hanging, _ = strings.Cut(strings.TrimSpace(line), " ")
	return target, hanging, func() { cancel(); _ = cmd.Wait() }, err
}

// runBare posts with 256 requests in flight, with a webhook's headers and a body of 256 bytes, and prints the requests per second.
func runBare(ctx context.Context, target string, n int) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	work := make(chan struct{})
	var wg sync.WaitGroup
	var failed error
	var once sync.Once
	began := time.Now()
	for range 256 {
		wg.Go(func() {
			for range work {
				if err := post(ctx, client, target, began); err != nil {
					once.Do(func() { failed = err })
				}
			}
		})
	}
	for range n {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	fmt.Println(float64(n) / time.Since(began).Seconds())
	return failed
}

// bareBody is a payload of 256 bytes.
var bareBody = []byte(`{"text":"` + strings.Repeat("x", 245) + `"}`)

func post(ctx context.Context, client *http.Client, target string, due time.Time) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(bareBody))
	if err != nil {
		return err
	}
	id := "exe_" + ulid.Make().String() + "-s0000000000000"
	for name, value := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "Minutehand", "idempotency-key": id, "Webhook-Id": id, "Webhook-Timestamp": "1700000000",
		"Traceparent":       "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
		"Minutehand-Job-Id": "job_00000000000000000000000000", "Minutehand-Scheduled-For": due.UTC().Format("2006-01-02T15:04:05.000Z"), "Minutehand-Attempt": "1",
		"Minutehand-Fencing-Token": "0000-035d0143d0a670-000000000029-0000280000000012",
	} {
		req.Header[name] = []string{value}
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}
