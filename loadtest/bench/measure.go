package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

// clients is how many clients register at once.
const clients = 32

// process is a minutehand process under measurement.
type process struct {
	cmd    *exec.Cmd
	api    string
	client *http.Client
}

func start(ctx context.Context, binary, dir string) (*process, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // only asks for a free port
	if err != nil {
		return nil, err
	}
	addr := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return nil, err
	}
	p := &process{
		cmd: exec.CommandContext(ctx, binary, "run", "--data", dir, "--listen", addr), api: "http://" + addr,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}},
	}
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := p.get(ctx, p.api+"/readyz"); err == nil {
			return p, nil
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(errors.New("minutehand did not become ready"), p.cmd.Process.Kill(), p.cmd.Wait())
		}
	}
}

func (p *process) stop() error {
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	return p.cmd.Wait()
}

// cpu is the CPU time that the process has used, in seconds.
func (p *process) cpu() (float64, error) { return cpuOf(p.cmd.Process.Pid) }

// cpuOf returns utime and stime of /proc/PID/stat, which are in ticks of 10 ms, in seconds.
func cpuOf(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err1 := strconv.ParseFloat(fields[11], 64)
	system, err2 := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100, errors.Join(err1, err2)
}

func (p *process) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return p.do(req)
}

func (p *process) do(req *http.Request) ([]byte, error) {
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return nil, fmt.Errorf("%s: %s", resp.Status, body)
	}
	return body, nil
}

// inParallel runs work n times, atOnce at a time, and returns the first error.
func inParallel(atOnce, n int, work func(i int) error) error {
	numbers := make(chan int)
	var wg sync.WaitGroup
	var once sync.Once
	var failed error
	for range atOnce {
		wg.Go(func() {
			for i := range numbers {
				if err := work(i); err != nil {
					once.Do(func() { failed = err })
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
	return failed
}

func (p *process) post(ctx context.Context, path string, body io.Reader) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.api+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return p.do(req)
}

// register registers n jobs; at returns the instant of each.
func (p *process) register(ctx context.Context, target string, n int, at func(i int) time.Time) error {
	return inParallel(clients, n, func(i int) error {
		_, err := p.post(ctx, "/api/v1/jobs", strings.NewReader(fmt.Sprintf(
			`{"name":"bench","type":"one_shot","run_at":%q,"target":{"kind":"http_webhook","url":%q,"body":{"hello":"world"}}}`,
			at(i).UTC().Format(time.RFC3339Nano), target+"/hook",
		)))
		return err
	})
}

func (p *process) tally(ctx context.Context, target string, late bool) (tally, error) {
	return p.tallyOf(ctx, target, "", late)
}

// tallyOf returns the tally of the calls of one kind.
func (p *process) tallyOf(ctx context.Context, target, kind string, late bool) (tally, error) {
	query := "?kind=" + kind
	if late {
		query += "&late=1"
	}
	text, err := p.get(ctx, target+"/tally"+query)
	if err != nil {
		return tally{}, err
	}
	var t tally
	return t, json.Unmarshal(text, &t)
}

func (p *process) reset(ctx context.Context, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target+"/reset", nil)
	if err != nil {
		return err
	}
	_, err = p.do(req)
	return err
}

// await waits until the sink has seen n calls.
func (p *process) await(ctx context.Context, target string, n int) (tally, error) {
	return p.awaitKind(ctx, target, "", n)
}

func (p *process) awaitKind(ctx context.Context, target, kind string, n int) (tally, error) {
	for deadline := time.Now().Add(15 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		t, err := p.tallyOf(ctx, target, kind, false)
		if err != nil || t.Count >= n {
			return t, err
		}
		if time.Now().After(deadline) {
			return t, fmt.Errorf("the sink saw %d of %d calls", t.Count, n)
		}
	}
}

// measure runs one round on a fresh folder.
func measure(ctx context.Context, r *results, binary, target string, fires int, steady time.Duration) error {
	return inFreshProcess(ctx, binary, func(p *process) error {
		return errors.Join(p.stampede(ctx, r, target, fires), p.steady(ctx, r, target, steady), p.batches(ctx, r, target))
	})
}

// batchJobs is how many jobs are registered in batches.
const batchJobs = 200_000

// restingText is the size in KB of the bodies of jobs at rest in one process: 100 bytes.
const restingText = 100.0 / 1024

// batches registers jobs that are due in a year.
func (p *process) batches(ctx context.Context, r *results, target string) error {
	began := time.Now()
	if err := p.registerBatches(ctx, batchJobs, jobsAtRest(target, restingText)); err != nil {
		return err
	}
	r.batch = append(r.batch, batchJobs/time.Since(began).Seconds())
	return nil
}

// registerBatches registers n jobs, 1,000 per request; next returns the JSON of each.
func (p *process) registerBatches(ctx context.Context, n int, next func() string) error {
	const size, clients = 1000, 8
	return inParallel(clients, n/size, func(int) error {
		var body bytes.Buffer
		body.WriteString(`{"jobs":[`)
		for i := range size {
			if i > 0 {
				body.WriteByte(',')
			}
			body.WriteString(next())
		}
		body.WriteString("]}")
		answer, err := p.post(ctx, "/api/v1/jobs:batch", &body)
		if err == nil && bytes.Count(answer, []byte(`"status":201`)) != size {
			err = errors.New("not every job of a batch was accepted")
		}
		return err
	})
}

// jobsAtRest returns jobs that are due in a year, with so many KB of random text in each body.
func jobsAtRest(target string, kb float64) (next func() string) {
	at := time.Now().AddDate(1, 0, 0).UTC().Format(time.RFC3339)
	return func() string {
		return fmt.Sprintf(`{"name":"bench","type":"one_shot","run_at":%q,"target":{"kind":"http_webhook","url":%q,"body":{"text":%q}}}`, at, target+"/hook", text(kb))
	}
}

// stampede registers jobs that are all due at one instant, far enough ahead, and times them from that instant to the
// arrival of the last.
func (p *process) stampede(ctx context.Context, r *results, target string, n int) error {
	if err := p.reset(ctx, target); err != nil {
		return err
	}
	at := time.Now().Add(10*time.Second + time.Duration(n)*time.Second/2500).Truncate(time.Millisecond)
	before, err := p.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := p.register(ctx, target, n, func(int) time.Time { return at }); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := p.cpu()
	if err != nil {
		return err
	}
	r.register = append(r.register, float64(n)/took.Seconds())
	r.registerCPU = append(r.registerCPU, (after-before)/float64(n)*1000)
	if time.Now().After(at) {
		return errors.New("registration took longer than planned for")
	}
	time.Sleep(time.Until(at.Add(-100 * time.Millisecond)))
	if before, err = p.cpu(); err != nil {
		return err
	}
	t, err := p.await(ctx, target, n)
	if err != nil {
		return err
	}
	if after, err = p.cpu(); err != nil {
		return err
	}
	m, err := p.metrics(ctx)
	if err != nil {
		return err
	}
	r.stampede = append(r.stampede, float64(n)/t.Last.Sub(at).Seconds())
	r.cpu = append(r.cpu, (after-before)/float64(n)*1000)
	for group, s := range map[string]*samples{"retry-manager": &r.settle, "audit-history": &r.history, "audit-archive": &r.archive} {
		*s = append(*s, m[`minutehand_log_lag_records{group="`+group+`",topic="events"}`])
	}
	return nil
}

// metrics reads the samples of /metrics.
func (p *process) metrics(ctx context.Context) (map[string]float64, error) {
	text, err := p.get(ctx, p.api+"/metrics")
	if err != nil {
		return nil, err
	}
	m := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			m[name] = v
		}
	}
	return m, nil
}

// steadyRate is how many jobs a second the steady load has.
const steadyRate = 1000

// steady fires steadyRate jobs a second.
func (p *process) steady(ctx context.Context, r *results, target string, d time.Duration) error {
	if err := p.reset(ctx, target); err != nil {
		return err
	}
	n := int(d.Seconds() * steadyRate)
	from := time.Now().Add(5*time.Second + time.Duration(n)*time.Second/2500)
	if err := p.register(ctx, target, n, func(i int) time.Time { return from.Add(time.Duration(i) * time.Second / steadyRate) }); err != nil {
		return err
	}
	if _, err := p.await(ctx, target, n); err != nil {
		return err
	}
	t, err := p.tally(ctx, target, true)
	if err != nil {
		return err
	}
	sort.Slice(t.Late, func(i, j int) bool { return t.Late[i] < t.Late[j] })
	r.p50 = append(r.p50, float64(t.Late[len(t.Late)/2])/1000)
	r.p99 = append(r.p99, float64(t.Late[len(t.Late)*99/100])/1000)
	r.early = append(r.early, float64(t.Early))
	return nil
}
