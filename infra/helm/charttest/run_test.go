//go:build servers

package charttest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// container is a rendered container as a process of this machine: what it listens on has a loopback address of its own, what is mounted
// lies in a folder.
type container struct {
	name, address, folder string
	spec                  corev1.Container
	cmd                   *exec.Cmd
	log                   bytes.Buffer
}

const token = "a-token-that-only-this-test-knows"

func newContainer(t *testing.T, name string, p *corev1.PodTemplateSpec, n int) *container {
	t.Helper()
	c := &container{name: name, address: fmt.Sprintf("127.0.1.%d", n), folder: t.TempDir(), spec: p.Spec.Containers[0]}
	if err := os.WriteFile(filepath.Join(c.folder, "value"), []byte(token), 0o600); err != nil { // the one secret that these values name
		t.Fatal(err)
	}
	binary, err := filepath.Abs("../../../.bin" + c.spec.Command[0])
	if err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command(binary, append(c.spec.Command[1:], c.spec.Args...)...)
	c.cmd.Stdout, c.cmd.Stderr = &c.log, &c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, e := range c.spec.Env { // and nothing else, as in a container
		value := strings.Replace(e.Value, "0.0.0.0:", c.address+":", 1)
		for _, m := range c.spec.VolumeMounts {
			value = strings.Replace(value, m.MountPath+"/", c.folder+"/", 1)
		}
		c.cmd.Env = append(c.cmd.Env, e.Name+"="+value)
	}
	return c
}

// passes reports whether a probe succeeds.
func (c *container) passes(p *corev1.Probe) bool {
	port := p.HTTPGet.Port.StrVal
	for _, known := range c.spec.Ports {
		if known.Name == port {
			port = fmt.Sprint(known.ContainerPort)
		}
	}
	resp, err := http.Get("http://" + c.address + ":" + port + p.HTTPGet.Path)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Every container of the chart runs as it is rendered, with its command, its environment, its secrets and its probes, and a hundred jobs
// fire through them.
func TestRenderedContainersRunAndFireAHundredJobs(t *testing.T) {
	at := func(server string) string { return "127.0.0.1:" + os.Getenv(server+"_PORT") }
	name := fmt.Sprintf("chart%d", time.Now().UnixNano())
	values := parse(fmt.Sprintf(`
partitions: 8
allowPrivateTargets: true
drainLimitSeconds: 10
servers:
  cassandra: {hosts: [%q], keyspace: %s, replication: "{'class': 'SimpleStrategy', 'replication_factor': 1}"}
  kafka: {brokers: [%q], prefix: %s., partitions: 4, replication: 1}
  redis: {addresses: [%q], prefix: '%s:'}
  zookeeper: {servers: [%q], root: /%s}
  s3: {bucket: %s, endpoint: 'http://%s', accessKey: minutehand, passwordSecret: {name: s3, key: secret-key}}
api: {tokenSecret: {name: api-token, key: token}}
settings: {MINUTEHAND_ARCHIVE_CLOSE_AFTER: 3s}
`, at("CASSANDRA"), name, at("KAFKA"), name, at("REDIS"), name, at("ZOOKEEPER"), name, name, at("S3")))
	of := pods(objects(t, values))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var running []*container
	for n, component := range []string{"migration", "bucket-loader", "scheduler-worker", "executor", "retry-manager", "audit-writer", "job-api"} {
		c := newContainer(t, component, of[component], n+1)
		if strings.Contains(component, "migration") || component == "audit-writer" { // S3's key is another secret
			if err := os.WriteFile(filepath.Join(c.folder, "value"), []byte("minutehand-local"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if component == "migration" {
			for range 2 { // it is safe to run again
				again := *c.cmd
				if text, err := (&exec.Cmd{Path: again.Path, Args: again.Args, Env: again.Env}).CombinedOutput(); err != nil {
					t.Fatalf("migration: %v: %s", err, text)
				}
			}
			continue
		}
		if err := c.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running = append(running, c)
	}
	for _, c := range running {
		for !c.passes(c.spec.ReadinessProbe) || !c.passes(c.spec.LivenessProbe) {
			if ctx.Err() != nil {
				t.Fatalf("%s is not ready:\n%s", c.name, c.log.String())
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	var calls atomic.Int64
	sink := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	defer sink.Close()
	register(ctx, t, running[len(running)-1].address+":8080", sink.URL)
	for calls.Load() < 100 && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
	}
	for _, c := range running {
		_ = c.cmd.Process.Signal(syscall.SIGTERM) // as Kubernetes does
	}
	for _, c := range running {
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, c.log.String())
		}
	}
	if n := calls.Load(); n != 100 {
		t.Errorf("%d calls, want 100", n)
	}
	t.Logf("%d containers ran, and %d jobs fired", len(running)+1, calls.Load())
}

// register registers a hundred jobs, due in three seconds.
func register(ctx context.Context, t *testing.T, api, target string) {
	t.Helper()
	jobs := make([]map[string]any, 100)
	for i := range jobs {
		jobs[i] = map[string]any{
			"name": "chart", "type": "one_shot", "delay": "3s", "target": map[string]any{"kind": "http_webhook", "url": target},
		}
	}
	text, err := json.Marshal(map[string]any{"jobs": jobs})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+api+"/api/v1/jobs:batch", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || bytes.Contains(body, []byte(`"problem"`)) {
		t.Fatalf("answered %d: %s", resp.StatusCode, body)
	}
}
