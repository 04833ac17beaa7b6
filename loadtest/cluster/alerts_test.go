//go:build servers && alerts

package cluster_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/dependents"
	"github.com/minutehand/minutehand/libs/job"
)

const (
	// faster is how many times the time of the alerts runs faster here: their windows, waits and ages are divided by it.
	faster = 20
	// firesWithin is how long an alert may take to fire: an entry counts as overdue only when its minute should have been closed.
	firesWithin = 8 * time.Minute
	// endsWithin is how long it may take to end when its runbook was followed: the longest window of a burn rate, 6 h, has to pass.
	endsWithin = 8 * time.Minute
	// every is how many jobs of every second there are.
	every = 60
)

var only = flag.String("cluster.alerts", "", "regular expression of the alerts that are made to fire")

// drill is the platform under a Prometheus with all alerts, and somebody on call.
type drill struct {
	*platform
	root, dir, prometheus string
	// env is the environment of a runbook's commands.
	env []string
	// mended is set when the failing target answers again.
	failing *failing
	// pager is whom jobs tell, which fails until it is mended.
	pager   *failing
	cmd     *exec.Cmd
	targets sync.Mutex
}

// failing is a target that answers 500 until it is mended.
type failing struct {
	mu     sync.Mutex
	mended bool
	url    string
}

func (f *failing) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mended {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

func (f *failing) mend() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mended = true
}

// fault is what makes an alert fire, and how it is ended.
type fault struct {
	alert string
	// make brings it about. It returns variables for the runbook's commands.
	make func() []string
	// block is which of the mitigation's blocks of commands fits, from 0 on. If it is -1, nothing has to be done.
	block int
	// before is what the person on call does that is no command, such as having the target mended.
	before func()
	// also are alerts that fire for the same fault, and end with it.
	also []string
}

// Each alert fires for a fault that is meant for it, on the real services and servers; each query and command of its runbook works
// meanwhile; and it ends when the runbook's commands were carried out. Time runs twenty times faster for the alerts.
func TestEachAlertFiresAndIsEndedByTheCommandsOfItsRunbook(t *testing.T) {
	d := newDrill(t)
	time.Sleep(20 * time.Second)
	if firing := d.ask("ALERTS"); len(firing) > 0 {
		t.Fatalf("before anything is wrong there are alerts: %v", firing)
	}
	tested := map[string]bool{}
	for _, f := range d.faults() {
		for _, alert := range append([]string{f.alert}, f.also...) {
			tested[alert] = true
		}
		if regexp.MustCompile(*only).MatchString(f.alert) {
			d.play(f)
		}
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(d.read("infra/alerts/minutehand.rules.yaml"), -1) {
		if !tested[m[1]] {
			t.Errorf("%s was not made to fire", m[1])
		}
	}
}

func (d *drill) play(f fault) {
	t, began := d.t, time.Now()
	env := f.make()
	for _, alert := range append([]string{f.alert}, f.also...) {
		eventually(t, alert+" fires", firesWithin, func() bool { return d.fires(alert) })
	}
	fired := time.Since(began)
	text := d.read("runbooks/" + f.alert + ".md")
	diagnosis, mitigation, _ := strings.Cut(text[strings.Index(text, "## Diagnosis"):], "## Mitigation")
	queries, commands := 0, 0
	for _, block := range blocks(diagnosis, "promql") {
		for query := range strings.Lines(block) {
			queries++
			d.ask(strings.TrimSpace(query))
		}
	}
	for _, block := range blocks(diagnosis, "sh") {
		commands++
		d.operate(block, slices.Concat(d.env, env)...)
	}
	if f.before != nil {
		f.before()
	}
	if f.block >= 0 {
		commands++
		d.operate(blocks(mitigation, "sh")[f.block], slices.Concat(d.env, env)...)
	}
	began = time.Now()
	for _, alert := range append([]string{f.alert}, f.also...) {
		eventually(t, alert+" ends", endsWithin, func() bool { return !d.fires(alert) })
	}
	t.Logf("%s fired after %.0f s; %d queries, %d commands; it ended %.0f s after the last", strings.Join(append([]string{f.alert}, f.also...), ", "),
		fired.Seconds(), queries, commands, time.Since(began).Seconds())
}

// blocks returns the fenced blocks of a language.
func blocks(text, language string) (list []string) {
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

func (d *drill) fires(alert string) bool {
	return len(d.ask(fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing"}`, alert))) > 0
}

// ask asks Prometheus a query, which must be well-formed, and returns the labels of the answer's series.
func (d *drill) ask(query string) (series []map[string]string) {
	d.t.Helper()
	r, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, d.prometheus+"/api/v1/query?query="+url.QueryEscape(query), nil)
	d.must(err)
	resp, err := http.DefaultClient.Do(r)
	d.must(err)
	defer resp.Body.Close()
	var body struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   struct {
			Result []struct {
				Metric map[string]string `json:"metric"`
			} `json:"result"`
		} `json:"data"`
	}
	d.must(json.NewDecoder(resp.Body).Decode(&body))
	if body.Status != "success" {
		d.t.Fatalf("%s: %s", query, body.Error)
	}
	for _, one := range body.Data.Result {
		series = append(series, one.Metric)
	}
	return series
}

func (d *drill) read(name string) string {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(d.root, name))
	d.must(err)
	return string(text)
}

// newDrill starts the platform, its load and Prometheus.
func newDrill(t *testing.T) *drill {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	d := &drill{root: root, dir: t.TempDir(), failing: &failing{}, pager: &failing{}}
	d.platform = newInstallation(t).fleet("MINUTEHAND_SCHEDULE_AUDIT_PAUSE=5s")
	bad := httptest.NewServer(d.failing)
	t.Cleanup(bad.Close)
	d.failing.url = strings.Replace(bad.URL, "127.0.0.1", "localhost", 1) // another host than the sink's
	pager := httptest.NewServer(d.pager)
	t.Cleanup(pager.Close)
	d.pager.url = pager.URL
	kube := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.kubectl(w, r)
		d.configure("")
	}))
	t.Cleanup(kube.Close)
	d.env = []string{
		"NAME=" + releaseName, "MINUTEHAND_SERVER=http://" + d.Member("job-api", 0).Listen,
		"PATH=" + d.kubectlAt(kube.URL) + ":" + filepath.Join(root, ".bin") + ":" + os.Getenv("PATH"),
	}
	jobs := make([]map[string]any, every)
	for i := range jobs {
		jobs[i] = d.everySecond(fmt.Sprint("every second ", i))
	}
	d.register(jobs)
	d.probe(1)
	d.observe()
	return d
}

// everySecond returns a job that is called each second.
func (d *drill) everySecond(name string) map[string]any {
	return map[string]any{
		"name": name, "type": "interval", "every": "1s", "target": map[string]any{"kind": "http_webhook", "url": d.sink.url + "/ok"},
	}
}

// observe starts Prometheus with the alerts, sped up.
func (d *drill) observe() {
	rules := regexp.MustCompile(`\[(\d+)([mh])\]|(for:|offset) (\d+)(m)`).ReplaceAllStringFunc(d.read("infra/alerts/minutehand.rules.yaml"), func(span string) string {
		n, err := strconv.Atoi(regexp.MustCompile(`\d+`).FindString(span))
		d.must(err)
		unit := map[bool]time.Duration{true: time.Hour, false: time.Minute}[strings.Contains(span, "h]")]
		short := fmt.Sprint(int((time.Duration(n) * unit / faster).Seconds()), "s")
		return regexp.MustCompile(`\d+[mh]`).ReplaceAllString(span, short)
	})
	for long, short := range map[string]string{"> 900\n": "> 45\n", "> 600\n": "> 30\n", "> 50000\n": "> 2500\n"} {
		if !strings.Contains(rules, long) {
			d.t.Fatalf("no alert compares with %q", long)
		}
		rules = strings.ReplaceAll(rules, long, short)
	}
	d.must(os.WriteFile(filepath.Join(d.dir, "rules.yaml"), []byte(rules), 0o600))
	server := httptest.NewServer(nil) // to learn of a free port
	address := strings.TrimPrefix(server.URL, "http://")
	server.Close()
	d.prometheus = "http://" + address
	d.configure("")
	build := exec.CommandContext(d.t.Context(), filepath.Join(d.root, "infra", "alerts", "check"), "prometheus") //nolint:gosec // a script of this project
	if out, err := build.CombinedOutput(); err != nil {
		d.t.Fatalf("cannot build Prometheus: %v: %s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(d.root, ".bin", "prometheus-*"))
	d.must(err)
	d.cmd = exec.CommandContext(d.t.Context(), found[0], "--config.file="+filepath.Join(d.dir, "prometheus.yaml"), //nolint:gosec // built above
		"--storage.tsdb.path="+filepath.Join(d.dir, "tsdb"), "--web.listen-address="+address, "--log.level=warn")
	log, err := os.Create(filepath.Join(d.dir, "prometheus.log"))
	d.must(err)
	d.t.Cleanup(func() { _ = log.Close() })
	d.cmd.Stderr = log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.must(d.cmd.Start())
	d.t.Cleanup(func() { _, _ = d.cmd.Process.Kill(), d.cmd.Wait() })
	eventually(d.t, "Prometheus answers", time.Minute, func() bool {
		resp, err := http.Get(d.prometheus + "/-/ready") //nolint:noctx // it is asked until it answers
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	})
}

// configure tells Prometheus where the processes are now, and one more that is no member of the fleet.
func (d *drill) configure(more string) {
	d.targets.Lock()
	defer d.targets.Unlock()
	text := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\nscrape_configs:\n  - job_name: minutehand\n    static_configs:\n"
	for _, m := range d.Members {
		text += fmt.Sprintf("      - {targets: [%q], labels: {pod: %q}}\n", m.Admin, fmt.Sprint(m.Service, "-", m.N))
	}
	if more != "" {
		text += fmt.Sprintf("  - job_name: one-process\n    scheme: https\n    tls_config: {insecure_skip_verify: true}\n    static_configs: [{targets: [%q]}]\n", more)
	}
	d.must(os.WriteFile(filepath.Join(d.dir, "prometheus.yaml"), []byte(text), 0o600))
	if d.cmd != nil {
		d.must(d.cmd.Process.Signal(syscall.SIGHUP))
	}
}

// each does something to both processes of a service.
func (d *drill) each(service string, s syscall.Signal) {
	for n := range 2 {
		d.Member(service, n).Signal(s)
	}
}

// stall stops workers for longer than they trust what they read.
func (d *drill) stall(times int) {
	for range times {
		d.each("scheduler-worker", syscall.SIGSTOP)
		time.Sleep(session + 2*time.Second)
		d.each("scheduler-worker", syscall.SIGCONT)
		time.Sleep(session / 2)
	}
}

// oneShots registers jobs that are due soon.
func (d *drill) oneShots(n int, in time.Duration, target, label string, attempts int) {
	due := time.Now().Add(in)
	jobs := make([]map[string]any, n)
	for i := range jobs {
		jobs[i] = d.oneShot(due.Add(time.Duration(i)*time.Millisecond), "")
		jobs[i]["target"] = map[string]any{"kind": "http_webhook", "url": target, "timeout": "60s"}
		jobs[i]["labels"] = map[string]any{"drill": label}
		jobs[i]["retry_policy"] = map[string]any{"max_attempts": attempts}
	}
	d.register(jobs)
}

// redis connects to the hot tier.
func (d *drill) redis() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: servertest.Address(d.t, "REDIS")})
	d.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (d *drill) faults() []fault {
	none := func(do func()) func() []string { return func() []string { do(); return nil } }
	return []fault{
		{alert: "MinutehandServiceDown", make: func() []string {
			d.Member("executor", 1).Signal(syscall.SIGKILL)
			return []string{"POD=executor-1"}
		}},
		{alert: "MinutehandPartitionUnowned", make: none(func() { d.each("scheduler-worker", syscall.SIGKILL) })},
		{alert: "MinutehandLate", make: none(func() { d.stall(1) })},
		{alert: "MinutehandOwnersStall", make: func() []string { d.stall(3); return []string{"POD=scheduler-worker-0"} }},
		{alert: "MinutehandAPIFails", make: none(func() { local(d.t, "down", "cassandra") })},
		{alert: "MinutehandServerFails", make: none(func() { local(d.t, "down", "redis") })},
		{alert: "MinutehandHotTierFull", make: none(d.fillHotTier)},
		{alert: "MinutehandPutBacks", make: none(d.forgetEntries), block: -1},
		{alert: "MinutehandScheduleLost", make: none(d.deleteEntry), block: -1},
		{alert: "MinutehandTargetsHeldBack", make: func() []string {
			d.oneShots(20_000, 15*time.Second, d.sink.url+"/slow", "held", 1)
			return []string{"LABEL=drill=held"}
		}},
		{
			alert: "MinutehandDeadLettersOfOneHost", also: []string{"MinutehandDeadLetters"}, before: d.failing.mend,
			make: none(func() { d.oneShots(200, 2*time.Second, d.failing.url, "fails", 1) }),
		},
		{alert: "MinutehandArchiveBehind", make: none(func() { local(d.t, "down", "s3") })},
		{
			alert: "MinutehandOccurrenceOverdue", also: []string{"MinutehandLogBehind"},
			make: none(func() { d.each("retry-manager", syscall.SIGKILL) }),
		},
		{
			alert: "MinutehandDeadlinesMissed", block: -1, make: none(d.missDeadlines),
			before: func() { d.each("scheduler-worker", syscall.SIGCONT) },
		},
		{alert: "MinutehandOwnersNotTold", block: -1, make: d.tellInVain, before: d.pager.mend},
		{alert: "MinutehandChainCut", make: d.closeCircle},
		{alert: "MinutehandCertificateExpires", also: nil, make: d.oneProcess},
		{alert: "MinutehandDiskFull", make: d.fillDisk},
	}
}

// fillHotTier leaves Redis hardly more memory than it uses for what is not an outcome.
func (d *drill) fillHotTier() {
	c := d.redis()
	info, err := c.Info(d.t.Context(), "memory").Result()
	d.must(err)
	used, err := strconv.Atoi(regexp.MustCompile(`used_memory:(\d+)`).FindStringSubmatch(info)[1])
	d.must(err)
	d.must(c.ConfigSet(d.t.Context(), "maxmemory", strconv.Itoa(used)).Err())
}

// forgetEntries deletes hot buckets with what is due in them.
func (d *drill) forgetEntries() {
	d.oneShots(200, 12*time.Second, d.sink.url+"/ok", "forgotten", 1)
	c := d.redis()
	for _, kind := range []string{"members", "due:*", "att:*", "lanes", "aside", "back"} {
		keys, err := c.Keys(d.t.Context(), d.config.Redis.Prefix+"{p*}:"+kind).Result()
		d.must(err)
		if len(keys) > 0 {
			d.must(c.Del(d.t.Context(), keys...).Err())
		}
	}
}

// deleteEntry deletes the next entry of a job.
func (d *drill) deleteEntry() {
	due := time.Now().Add(24 * time.Hour).Truncate(time.Second).UTC()
	ids := d.register([]map[string]any{{
		"name": "once a day", "type": "interval", "every": "24h", "start_at": due.Format(time.RFC3339),
		"target": map[string]any{"kind": "http_webhook", "url": d.sink.url + "/ok"},
	}})
	p := bucket.Partition(ids[0], partitions)
	rows, err := d.ports.Pending.Scan(d.t.Context(), p, job.Minute(due), nil, 500)
	d.must(err)
	config := gocql.NewCluster(d.config.Cassandra.Hosts...)
	config.Keyspace, config.Timeout = d.config.Cassandra.Keyspace, 20*time.Second
	session, err := config.CreateSession()
	d.must(err)
	defer session.Close()
	d.must(session.Query("DELETE FROM pending WHERE partition = ? AND minute = ?", p, job.Minute(due)).ExecContext(d.t.Context()))
	if len(rows) != 1 {
		d.t.Fatalf("the minute in which the job is due has %d entries", len(rows))
	}
}

// missDeadlines stops the workers, so that an incident begins.
func (d *drill) missDeadlines() {
	promised := d.everySecond("promised")
	promised["sla"] = map[string]any{"start_within": "2s"}
	d.register([]map[string]any{promised})
	eventually(d.t, "the watchdog watches it", time.Minute, func() bool { return len(d.ask("minutehand_bucket_loader_watched_jobs > 0")) > 0 })
	d.each("scheduler-worker", syscall.SIGSTOP)
}

// tellInVain gives a job up whose owner cannot be told.
func (d *drill) tellInVain() []string {
	j := d.oneShot(time.Now().Add(2*time.Second), "")
	j["target"] = map[string]any{"kind": "http_webhook", "url": d.pager.url}
	j["retry_policy"] = map[string]any{"max_attempts": 1}
	j["notify"] = []map[string]any{{"on": []string{"dead_letter"}, "target": map[string]any{"kind": "http_webhook", "url": d.pager.url}}}
	return []string{"JOB=" + d.register([]map[string]any{j})[0]}
}

// closeCircle lets two jobs follow each other, as two requests at once may, and executes one.
func (d *drill) closeCircle() []string {
	ctx := d.t.Context()
	a := d.register([]map[string]any{d.oneShot(time.Now().Add(24*time.Hour), "/ok")})[0]
	follower := func(parent string) string {
		j := d.oneShot(time.Now(), "/ok")
		delete(j, "run_at")
		j["type"], j["after"] = "after", []map[string]any{{"job": parent, "on": "any"}}
		return d.register([]map[string]any{j})[0]
	}
	b := follower(a)
	c := follower(b)
	row, err := d.ports.Jobs.Get(ctx, b)
	d.must(err)
	row.Version++
	row.Definition.Schedule.After = append(row.Definition.Schedule.After, job.Parent{JobID: c, Named: c, On: job.OnAny})
	d.must(d.ports.Jobs.Replace(ctx, row))
	d.must(dependents.Store{Jobs: d.ports.Jobs, Settings: d.ports.Settings}.Follow(ctx, &row, time.Now()))
	time.Sleep(10 * time.Second) // nobody has it in mind without the other parent
	answer, err := d.send(ctx, 0, http.MethodPost, "/jobs/"+a+"/trigger", nil)
	d.must(err)
	if answer.status != http.StatusAccepted {
		d.t.Fatalf("the trigger was answered %d: %s", answer.status, answer.body)
	}
	return []string{"JOB=" + b}
}

// command runs a command of the machine.
func (d *drill) command(name string, args ...string) {
	d.t.Helper()
	if out, err := exec.CommandContext(context.WithoutCancel(d.t.Context()), name, args...).CombinedOutput(); err != nil { //nolint:gosec // a test's own
		d.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// certificate makes a certificate that signs itself.
func (d *drill) certificate(name string, days int) (certificate, key string) {
	certificate, key = filepath.Join(d.dir, name+".pem"), filepath.Join(d.dir, name+".key")
	d.command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN="+name,
		"-days", strconv.Itoa(days), "-keyout", key, "-out", certificate)
	return certificate, key
}

// diskSize is that of the disk of the one process, and diskFiller what leaves less than a tenth of it, and less than the gigabyte
// below which the alert fires on any disk.
const (
	diskSize   = "1800m"
	diskFiller = "1000M"
)

// oneProcess starts one process on a disk of its own, with a certificate that expires soon.
func (d *drill) oneProcess() []string {
	data := filepath.Join(d.dir, "data")
	d.must(os.Mkdir(data, 0o700))
	d.command("mount", "-t", "tmpfs", "-o", "size="+diskSize+",mode=700", "tmpfs", data)
	d.t.Cleanup(func() { d.command("umount", "--lazy", data) })
	certificate, key := d.certificate("old", 3)
	newCertificate, newKey := d.certificate("new", 90)
	server := httptest.NewServer(nil) // to learn of a free port
	address := strings.TrimPrefix(server.URL, "http://")
	server.Close()
	cmd := exec.CommandContext(d.t.Context(), filepath.Join(d.root, ".bin", "minutehand"), "run", "--data", data, "--listen", address, //nolint:gosec // ours
		"--tls-certificate", certificate, "--tls-key", key, "--log-level", "warn")
	d.must(cmd.Start())
	d.t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	d.configure(address)
	return []string{"FILE=" + certificate, "KEY=" + key, "NEW_CERTIFICATE=" + newCertificate, "NEW_KEY=" + newKey}
}

// fillDisk fills the disk of the one process.
func (d *drill) fillDisk() []string {
	data := filepath.Join(d.dir, "data")
	d.command("fallocate", "-l", diskFiller, filepath.Join(data, "else"))
	return []string{"DATA=" + data, "ELSE=" + filepath.Join(data, "else")}
}
