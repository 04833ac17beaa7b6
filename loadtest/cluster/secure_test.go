//go:build servers && secure

package cluster_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/certificates/certificatestest"
	"github.com/minutehand/minutehand/libs/settings"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// secured makes an installation reach the servers as the environment says: by certificates, users and passwords.
func secured(c *installation) {
	var s cluster.Settings
	parser, err := kong.New(&s, settings.Defaults())
	c.must(err)
	_, err = parser.Parse(nil)
	c.must(err)
	o, err := s.Servers(c.logger())
	c.must(err)
	if o.Cassandra.Dial == nil || o.Kafka.Dial == nil || o.Redis.TLS == nil || o.ZooKeeper.TLS == nil || o.S3.TLS == nil {
		c.t.Fatal("a connection would speak in plain text; run make secure-test")
	}
	plain := c.config
	o.Cassandra.Keyspace, o.Cassandra.Timeout = plain.Cassandra.Keyspace, plain.Cassandra.Timeout
	o.Kafka.Prefix, o.Kafka.Partitions, o.Kafka.Replication = plain.Kafka.Prefix, plain.Kafka.Partitions, plain.Kafka.Replication
	o.Redis.Prefix, o.ZooKeeper.Root, o.ZooKeeper.Partitions, o.S3.Bucket = plain.Redis.Prefix, plain.ZooKeeper.Root, plain.Partitions, plain.S3.Bucket
	o.Partitions, o.Replication = plain.Partitions, plain.Replication
	c.config = o
}

// Every connection uses TLS, and every client is authenticated. A process of each kind is killed while users do everything that users
// do. Then all certificates are replaced, and Redis, ZooKeeper and Kafka, which read theirs only at the start, are restarted.
func TestUsersAreServedOverTLSWhateverIsKilledAndReplaced(t *testing.T) {
	f := newInstallation(t, secured).fleet()
	u := f.users(sized(25, 40), sized(40*time.Second, 70*time.Second))
	time.Sleep(5 * time.Second)
	for n, service := range []string{"scheduler-worker", "executor", "job-api", "bucket-loader", "retry-manager", "audit-writer"} {
		victim := f.Member(service, n%2)
		victim.Signal(syscall.SIGKILL)
		<-victim.Ended
		f.restart(service, n%2)
	}
	local(t, "certificates")
	time.Sleep(certificates.LookEvery + time.Second)
	for _, server := range []string{"redis", "zookeeper", "kafka"} {
		local(t, "kill", server)
		local(t, "up", "--secure", server)
	}
	u.Wait()
	f.check(func(a *ledger.Account) { a.HotLost = true })
	t.Log(u.Summary())
}

// A deployment of certificates alone: nothing is restarted, nothing fails, nothing is doubled.
func TestCertificatesAreReplacedUnderLoadWithoutAFailedCall(t *testing.T) {
	f := newInstallation(t, secured).fleet()
	want := f.everySecond(100, 20*time.Second)
	for range 2 {
		time.Sleep(3 * time.Second)
		local(t, "certificates")
		time.Sleep(certificates.LookEvery)
		// New connections are made with the new certificates.
		f.must(f.Member("job-api", 0).Stop())
		f.restart("job-api", 0)
	}
	eventually(t, "every occurrence is called", time.Minute, func() bool { return len(f.sink.all()) >= want })
	f.check(func(a *ledger.Account) { a.Crashed = false })
	t.Logf("%d calls", len(f.sink.all()))
}

// everySecond registers jobs that fire every second for a while, and returns how many calls that makes.
func (f *platform) everySecond(n int, lasts time.Duration) (calls int) {
	f.t.Helper()
	begin := time.Now().Add(3 * time.Second).Truncate(time.Second)
	jobs := make([]map[string]any, n)
	for i := range jobs {
		jobs[i] = map[string]any{
			"name": "every second", "type": "interval", "every": "1s", "start_at": begin, "end_at": begin.Add(lasts),
			"target": map[string]any{"kind": "http_webhook", "url": f.sink.url + "/ok"},
		}
	}
	f.register(jobs)
	return n * int(lasts/time.Second)
}

func TestNothingIsLostWhenProcessesAreKilledOverTLS(t *testing.T) {
	f := newInstallation(t, secured).fleet()
	want := f.everySecond(100, 20*time.Second)
	time.Sleep(5 * time.Second)
	for n, service := range []string{"scheduler-worker", "executor", "bucket-loader", "retry-manager", "audit-writer"} {
		victim := f.Member(service, n%2)
		victim.Signal(syscall.SIGKILL)
		<-victim.Ended
		f.restart(service, n%2)
	}
	eventually(t, "every occurrence is called", time.Minute, func() bool { return len(f.sink.all()) >= want })
	f.check(nil)
	t.Logf("%d calls of %d occurrences", len(f.sink.all()), want)
}

// What is wrong with a certificate or a password is said in one line of the log, with the server.
func TestWrongCertificateOrPasswordIsASentenceThatNamesServerAndReason(t *testing.T) {
	c := newInstallation(t, secured)
	f := c.processes()
	folder := t.TempDir()
	other, err := certificatestest.New(folder, "another-authority")
	c.must(err)
	foreign, err := other.Issue("stranger", "", "127.0.0.1")
	c.must(err)
	wrong := filepath.Join(folder, "wrong")
	c.must(os.WriteFile(wrong, []byte("not the password"), 0o600))
	tried := 0
	for _, server := range []struct{ name, service, port, password string }{
		{"CASSANDRA", "executor", "9042", "(?i)password.*incorrect"},
		{"KAFKA", "executor", "9092", "SASL|password of user"},
		{"REDIS", "executor", "6379", "WRONGPASS"},
		{"ZOOKEEPER", "executor", "2181", ""},
		{"S3", "audit-writer", "7070", "SignatureDoesNotMatch|403"},
	} {
		variable := "MINUTEHAND_" + server.name + "_"
		cases := map[string]string{variable + "TLS_CA=" + foreign.Authority: "unknown authority"}
		if server.name != "S3" { // it asks for no certificate
			cases[variable+"TLS_CERTIFICATE="+foreign.Certificate+" "+variable+"TLS_KEY="+foreign.Key] = "tls: |EOF|reset|certificate"
		}
		if server.password != "" {
			file := map[string]string{"S3": "SECRET_KEY_FILE="}[server.name]
			if file == "" {
				file = "PASSWORD_FILE="
			}
			cases[variable+file+wrong] = server.password
		}
		for setting, reason := range cases {
			tried++
			line := f.complaint(server.service, strings.Fields(setting), regexp.MustCompile("127.0.0.1:"+server.port+".*("+reason+")"))
			if line == "" || strings.Contains(line, "not the password") {
				t.Errorf("%s: the log does not tell what is wrong", setting)
			}
			t.Logf("%s: %s", server.name, line)
		}
	}
	if tried != 13 {
		t.Errorf("%d were tried", tried)
	}
}

// complaint starts a process with settings, and returns the line of its log that a pattern matches; "" if there is none for a while.
func (f *platform) complaint(service string, settings []string, pattern *regexp.Regexp) (line string) {
	f.t.Helper()
	usual := f.Variables
	f.Variables = append(usual[:len(usual):len(usual)], settings...)
	m, err := f.Start(service, 9)
	f.Variables = usual
	f.must(err)
	defer func() {
		m.Signal(syscall.SIGKILL)
		<-m.Ended
		f.must(os.Remove(m.Log))
	}()
	ctx, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	defer cancel()
	var text []byte
	for ctx.Err() == nil {
		if r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Admin+"/readyz", nil); err == nil {
			if resp, err := http.DefaultClient.Do(r); err == nil { // what is asked whether it is ready says why it is not
				_ = resp.Body.Close()
			}
		}
		text, err = os.ReadFile(m.Log)
		f.must(err)
		for l := range strings.Lines(string(text)) {
			if pattern.MatchString(l) {
				return strings.TrimSpace(l)
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	f.t.Logf("no line of the log has %v:\n%s", pattern, text)
	return ""
}
