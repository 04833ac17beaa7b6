//go:build servers

package cluster_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
)

// services are those of which a fleet has several each, in the order in which work flows.
func services() []string {
	return []string{"job-api", "bucket-loader", "scheduler-worker", "executor", "retry-manager", "audit-writer"}
}

// member is a service's process.
type member struct {
	service       string
	n             int
	admin, listen string // where it answers
	cmd           *exec.Cmd
	ended         chan struct{} // closed when it has
	err           error         // why it ended
	log           string        // a file
}

// fleet is the services as processes of their own, from the binaries that make binaries builds.
type fleet struct {
	*installation
	dir     string
	more    []string // further variables
	members []*member
	// ports are the test's own connections.
	ports *cluster.Cluster
}

// fleet starts two of each service, and waits until they are ready.
func (c *installation) fleet(variables ...string) *fleet {
	c.t.Helper()
	f := &fleet{installation: c, dir: c.t.TempDir(), more: variables}
	var err error
	f.ports, err = cluster.Open(c.t.Context(), c.config, c.logger())
	c.must(err)
	c.must(os.WriteFile(filepath.Join(f.dir, "s3.secret"), []byte(c.config.S3.SecretKey), 0o600))
	c.t.Cleanup(f.end)
	for n := range 2 {
		for _, s := range services() {
			f.start(s, n)
		}
	}
	for _, m := range f.members {
		f.awaitReady(m)
	}
	return f
}

// end kills what still runs, and shows the logs' ends if the test failed.
func (f *fleet) end() {
	for _, m := range f.members {
		m.signal(syscall.SIGKILL)
		<-m.ended
		if text, err := os.ReadFile(m.log); err == nil && f.t.Failed() && len(text) > 0 {
			const most = 4000
			f.t.Logf("%s %d:\n%s", m.service, m.n, text[max(0, len(text)-most):])
		}
	}
	f.ports.Close()
}

func (f *fleet) environment() []string {
	o := f.config
	env := append(os.Environ(),
		"MINUTEHAND_LOG_LEVEL=info", "MINUTEHAND_ARCHIVE_CLOSE_AFTER=3s", "MINUTEHAND_ALLOW_PRIVATE_TARGETS=true",
		fmt.Sprint("MINUTEHAND_PARTITIONS=", o.Partitions),
		"MINUTEHAND_CASSANDRA_HOSTS="+o.Cassandra.Hosts[0], "MINUTEHAND_CASSANDRA_KEYSPACE="+o.Cassandra.Keyspace,
		"MINUTEHAND_KAFKA_BROKERS="+o.Kafka.Brokers[0], "MINUTEHAND_KAFKA_PREFIX="+o.Kafka.Prefix,
		"MINUTEHAND_REDIS_ADDRESS="+o.Redis.Address, "MINUTEHAND_REDIS_PREFIX="+o.Redis.Prefix,
		"MINUTEHAND_ZOOKEEPER_SERVERS="+o.ZooKeeper.Servers[0], "MINUTEHAND_ZOOKEEPER_ROOT="+o.ZooKeeper.Root,
		"MINUTEHAND_S3_BUCKET="+o.S3.Bucket, "MINUTEHAND_S3_ENDPOINT="+o.S3.Endpoint, "MINUTEHAND_S3_ACCESS_KEY="+o.S3.AccessKey,
		"MINUTEHAND_S3_SECRET_KEY_FILE="+filepath.Join(f.dir, "s3.secret"),
	)
	return append(env, f.more...)
}

// freeAddress is one on loopback that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return address
}

// start starts the n-th process of a service.
func (f *fleet) start(service string, n int) *member {
	f.t.Helper()
	binary, err := filepath.Abs(filepath.Join("..", "..", ".bin", service))
	f.must(err)
	if _, err := os.Stat(binary); err != nil {
		f.t.Fatalf("there is no binary of %s; run make binaries", service)
	}
	m := &member{
		service: service, n: n, admin: freeAddress(f.t), listen: freeAddress(f.t), ended: make(chan struct{}),
		log: filepath.Join(f.dir, fmt.Sprintf("%s-%d.log", service, n)),
	}
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	f.must(err)
	m.cmd = exec.Command(binary) //nolint:gosec,noctx // a binary of this project; it is stopped by its signals
	m.cmd.Env = append(f.environment(), "MINUTEHAND_ADMIN_LISTEN="+m.admin, "MINUTEHAND_LISTEN="+m.listen)
	m.cmd.Stderr = log
	f.must(errors.Join(m.cmd.Start(), log.Close()))
	go func() {
		m.err = m.cmd.Wait()
		close(m.ended)
	}()
	f.members = append(slices.DeleteFunc(f.members, func(o *member) bool { return o.service == service && o.n == n }), m)
	return m
}

func (m *member) signal(s syscall.Signal) { _ = m.cmd.Process.Signal(s) }

// member is the n-th process of a service.
func (f *fleet) member(service string, n int) *member {
	i := slices.IndexFunc(f.members, func(m *member) bool { return m.service == service && m.n == n })
	return f.members[i]
}

func (f *fleet) awaitReady(m *member) {
	f.t.Helper()
	eventually(f.t, m.service+" is ready", time.Minute, func() bool {
		select {
		case <-m.ended:
			f.t.Fatalf("%s %d ended: %v", m.service, m.n, m.err)
		default:
		}
		return m.get(f.t, "/readyz") == http.StatusOK
	})
}

// get asks the process's admin listener; 0 if it does not answer.
func (m *member) get(t *testing.T, path string) int {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.admin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// stop ends a process as an operator does, who waits for it.
func (f *fleet) stop(m *member) {
	f.t.Helper()
	m.signal(syscall.SIGTERM)
	select {
	case <-m.ended:
		if m.err != nil {
			f.t.Errorf("%s %d did not stop cleanly: %v", m.service, m.n, m.err)
		}
	case <-time.After(90 * time.Second):
		f.t.Errorf("%s %d has not stopped after 90 s", m.service, m.n)
		m.signal(syscall.SIGKILL)
		<-m.ended
	}
}

// answer is what the API said.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ask makes a request of the n-th API. The error is that of the connection.
func (f *fleet) ask(ctx context.Context, n int, method, path string, body any) (answer, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+f.member("job-api", n).listen+"/api/v1"+path, bytes.NewReader(text))
	if err != nil {
		return answer{}, err
	}
	if body == nil {
		r.Body, r.ContentLength = nil, 0
	} else {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	return answer{resp.StatusCode, resp.Header, b}, err
}

// oneShot is a job that calls the sink's path at an instant.
func (f *fleet) oneShot(at time.Time, path string) map[string]any {
	return map[string]any{
		"name": "one-shot", "type": "one_shot", "run_at": at.UTC().Format("2006-01-02T15:04:05.000Z07:00"),
		"target": map[string]any{"kind": "http_webhook", "url": f.sink.url + path, "timeout": "60s"},
	}
}

// register registers jobs over both APIs, in batches, and gives their ids in order.
func (f *fleet) register(jobs []map[string]any) []string {
	f.t.Helper()
	const batch, clients = 250, 4
	ids := make([]string, len(jobs))
	chunks := slices.Collect(slices.Chunk(jobs, batch))
	work := make(chan int, len(chunks))
	for i := range chunks {
		work <- i
	}
	close(work)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for c := range clients {
		wg.Go(func() {
			for i := range work {
				got, err := f.registerBatch(c%2, chunks[i])
				mu.Lock()
				failed = cmp.Or(failed, err)
				mu.Unlock()
				copy(ids[i*batch:], got)
			}
		})
	}
	wg.Wait()
	f.must(failed)
	return ids
}

func (f *fleet) registerBatch(api int, jobs []map[string]any) ([]string, error) {
	a, err := f.ask(f.t.Context(), api, http.MethodPost, "/jobs:batch", map[string]any{"jobs": jobs})
	if err != nil {
		return nil, err
	}
	var got struct {
		Results []struct {
			Status int `json:"status"`
			Job    struct {
				ID string `json:"job_id"`
			} `json:"job"`
		} `json:"results"`
	}
	if err := json.Unmarshal(a.body, &got); err != nil || a.status != http.StatusOK {
		return nil, fmt.Errorf("a batch was answered %d: %s", a.status, a.body[:min(len(a.body), 500)])
	}
	ids := make([]string, len(jobs))
	for i, r := range got.Results {
		if r.Status != http.StatusCreated {
			return nil, fmt.Errorf("a job of a batch was answered %d", r.Status)
		}
		ids[i] = r.Job.ID
	}
	return ids, nil
}

// stampede registers n jobs that are due within a second, early enough that all are registered before, and gives when.
func (f *fleet) stampede(n int, path string) (ids []string, due time.Time) {
	f.t.Helper()
	due = time.Now().Add(5*time.Second + time.Duration(n)*time.Millisecond)
	jobs := make([]map[string]any, n)
	for i := range jobs {
		jobs[i] = f.oneShot(due.Add(time.Duration(i)*time.Second/time.Duration(n)), path)
	}
	ids = f.register(jobs)
	if ahead := time.Until(due); ahead < 0 {
		f.t.Logf("registration ended %s behind the first instant", -ahead)
	}
	return ids, due
}

// local runs a command of infra/local.
func local(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join("..", "..", "infra", "local", "local"), args...).CombinedOutput() //nolint:gosec // a script of this project
	if err != nil {
		t.Fatalf("infra/local/local %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
