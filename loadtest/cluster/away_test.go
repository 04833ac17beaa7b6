//go:build servers

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/loadtest/fleet"
	"github.com/minutehand/minutehand/loadtest/ledger"
	"github.com/minutehand/minutehand/loadtest/users"
)

const (
	// answerWithin is how long the API may take to answer, whatever is unavailable.
	answerWithin = 15 * time.Second
	// streamRate is how many jobs fall due per second meanwhile.
	streamRate = 40
)

// stream registers jobs that fall due one after the other from an instant on.
func (f *platform) stream(lasts time.Duration) (ids []string, from time.Time) {
	f.t.Helper()
	n := streamRate * int(lasts/time.Second)
	from = time.Now().Add(8 * time.Second)
	jobs := make([]map[string]any, n)
	for i := range jobs {
		jobs[i] = f.oneShot(from.Add(time.Duration(i)*time.Second/streamRate), "/ok")
	}
	return f.register(jobs), from
}

// prober registers a job every second, with the first few APIs in turn, and records their answers.
type prober struct {
	f      *platform
	apis   int
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	ids     []string
	answers []probe
}

type probe struct {
	at     time.Time
	took   time.Duration
	status int // 0 if there was no answer
	retry  int // Retry-After
}

func (f *platform) probe(apis int) *prober {
	ctx, cancel := context.WithCancel(f.t.Context())
	p := &prober{f: f, apis: apis, cancel: cancel}
	p.done.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			p.once(ctx, i)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	return p
}

func (p *prober) once(ctx context.Context, i int) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	a, err := p.f.ask(ctx, i%p.apis, http.MethodPost, "/jobs", p.f.oneShot(began.Add(2*time.Second), "/ok"))
	retry, _ := strconv.Atoi(a.header.Get("Retry-After"))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = append(p.answers, probe{began, time.Since(began), a.status, retry})
	var got struct {
		ID string `json:"job_id"`
	}
	if err == nil && a.status == http.StatusCreated && json.Unmarshal(a.body, &got) == nil {
		p.ids = append(p.ids, got.ID)
	}
}

// accepted reports whether a job was accepted since an instant.
func (p *prober) accepted(since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.answers {
		if a.at.After(since) && a.status == http.StatusCreated {
			return true
		}
	}
	return false
}

// end stops the prober and returns the jobs that were accepted.
func (p *prober) end() []string {
	p.cancel()
	p.done.Wait()
	return p.ids
}

// check checks that all answers between two instants have one status, and Retry-After with 503.
func (p *prober) check(what string, from, to time.Time, status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answers := 0
	defer func() {
		p.f.t.Logf("%s: %d registrations were answered %d", what, answers, status)
		if answers < 3 {
			p.f.t.Errorf("%s: too few to show anything", what)
		}
	}()
	for _, a := range p.answers {
		if a.at.Before(from) || a.at.Add(a.took).After(to) {
			continue
		}
		answers++
		if a.status != status || (status == http.StatusServiceUnavailable) != (a.retry > 0) {
			p.f.t.Errorf("%s: a registration was answered %d (Retry-After: %d) after %s, want %d", what, a.status, a.retry, a.took, status)
		}
	}
}

// cancelLater cancels some jobs that are due in the second half of a stream, and returns when that was acknowledged.
func (f *platform) cancelLater(ids []string) (cancelled []string, stops []ledger.Stop) {
	f.t.Helper()
	for _, id := range ids[len(ids)/2 : len(ids)/2+100] {
		a, err := f.ask(f.t.Context(), len(cancelled)%2, http.MethodPost, "/jobs/"+id+"/cancel", nil)
		f.must(err)
		if a.status != http.StatusOK {
			f.t.Fatalf("a cancel was answered %d: %s", a.status, a.body)
		}
		cancelled = append(cancelled, id)
		stops = append(stops, ledger.Stop{JobID: id, Kind: ledger.StopCancel, AckedAt: time.Now()})
	}
	return cancelled, stops
}

// wantUncalled checks that none of the jobs is called that were cancelled before an instant. On a busy machine some are called before their cancel.
func (f *platform) wantUncalled(cancelled []string, gone time.Time) {
	f.t.Helper()
	for _, c := range f.sink.all() {
		if c.At.After(gone) && slices.Contains(cancelled, c.JobID) {
			f.t.Errorf("%s was cancelled before the hot tier was lost, and called after that", c.JobID)
		}
	}
	if missing, _ := f.sink.missing(cancelled); missing < len(cancelled)/2 {
		f.t.Errorf("of %d jobs %d were called before they were cancelled", len(cancelled), len(cancelled)-missing)
	}
}

// recreateFires deletes the fires topic and creates it again.
func (f *platform) recreateFires() {
	f.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(f.config.Kafka.Brokers...))
	f.must(err)
	defer client.Close()
	topic := f.config.Kafka.Prefix + dispatch.TopicFires
	_, err = kadm.NewClient(client).DeleteTopic(f.t.Context(), topic)
	f.must(err)
	eventually(f.t, "the topic is created anew", 30*time.Second, func() bool {
		_ = f.ports.EnsureTopics(f.t.Context()) // the deletion takes a while
		topics, err := kadm.NewClient(client).ListTopics(f.t.Context(), topic)
		return err == nil && topics.Has(topic) && len(topics[topic].Partitions) == kafkaPartitions
	})
}

// wantGone checks that nothing listens in a server's place.
func (f *platform) wantGone(server string) {
	f.t.Helper()
	c, err := net.DialTimeout("tcp", servertest.Address(f.t, strings.ToUpper(server)), time.Second)
	if err == nil {
		f.t.Fatal(server+" was stopped, and something still listens in its place", c.Close())
	}
}

// needs returns the servers without which a service reports that it is not ready.
func needs(service string) []string {
	switch service {
	case "job-api":
		return []string{"cassandra"}
	case "audit-writer":
		return []string{"cassandra", "kafka", "s3"}
	}
	return []string{"cassandra", "redis", "kafka"}
}

// wantReadiness checks that while some servers are unavailable every service reports exactly those that it needs.
func (f *platform) wantReadiness(away ...string) {
	f.t.Helper()
	for _, m := range f.Members {
		var want []string
		for _, server := range needs(m.Service) {
			if slices.Contains(away, server) {
				want = append(want, server)
			}
		}
		eventually(f.t, fmt.Sprintf("%s says that it lacks %v", m, want), 20*time.Second, func() bool {
			lacks, ready := f.readiness(m)
			if len(want) == 0 {
				return ready
			}
			return !ready && !slices.ContainsFunc(want, func(server string) bool { return !slices.Contains(lacks, server) })
		})
	}
}

// readiness returns what a process reports about itself.
func (f *platform) readiness(m *fleet.Member) (lacks []string, ready bool) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, "http://"+m.Admin+"/readyz", nil)
	f.must(err)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, false
	}
	defer resp.Body.Close()
	var body struct {
		Missing []string `json:"missing"`
	}
	f.must(json.NewDecoder(resp.Body).Decode(&body))
	return body.Missing, resp.StatusCode == http.StatusOK
}

// A platform that starts before its servers waits for them, and reports that.
func TestServicesThatStartBeforeTheirServersWaitForThem(t *testing.T) {
	c := newInstallation(t)
	f := c.processes()
	away := []string{"zookeeper", "kafka", "redis", "s3"}
	local(t, append([]string{"down"}, away...)...)
	defer local(t, append([]string{"up"}, away...)...)
	for _, s := range fleet.Services() {
		_, err := f.Start(s, 0)
		f.must(err)
	}
	f.wantReadiness(away...)
	for _, service := range []string{"retry-manager", "audit-writer"} { // the executor waits for its start number before that
		eventually(t, service+" waits for the log", time.Minute, func() bool {
			text, err := os.ReadFile(f.Member(service, 0).Log)
			return err == nil && strings.Contains(string(text), `operation="subscribe to events"`)
		})
	}
	local(t, append([]string{"up"}, away...)...)
	for _, m := range f.Members {
		f.must(m.AwaitReady(t.Context()))
	}
	_, err := f.Start("job-api", 1)
	f.must(err)
	f.must(f.Member("job-api", 1).AwaitReady(t.Context()))
	ids, _ := f.stampede(200, "/ok")
	f.awaitCalls(ids)
	f.check(nil)
}

func TestServerThatIsAwayLosesNothing(t *testing.T) {
	f := newInstallation(t).fleet()
	awayFor := sized(2*session, 5*session)
	each := sized([]string{"zookeeper and s3", "redis"}, []string{"zookeeper and s3", "kafka", "cassandra", "redis", "the topic"})
	var u *users.Users
	if *full {
		u = f.users(40, 5*time.Minute)
	}
	var stops []ledger.Stop
	for _, server := range each {
		servers := strings.Split(server, " and ")
		ids, from := f.stream(awayFor + 20*time.Second) // from before until after
		var cancelled []string
		if server == "redis" {
			var more []ledger.Stop
			cancelled, more = f.cancelLater(ids)
			stops = append(stops, more...)
			ids = append(ids[:len(ids)/2:len(ids)/2], ids[len(ids)/2+100:]...)
		}
		time.Sleep(time.Until(from.Add(5 * time.Second)))
		probes := f.probe(2)
		away := time.Now()
		switch server {
		case "the topic":
			f.recreateFires()
		case "redis":
			local(t, "wipe", server)
		default:
			local(t, append([]string{"down"}, servers...)...)
		}
		gone := time.Now()
		if server != "the topic" {
			for _, s := range servers {
				f.wantGone(s)
			}
			f.wantReadiness(servers...)
			time.Sleep(awayFor - time.Since(away))
			probes.check(server+" is away", gone, time.Now(), map[bool]int{true: http.StatusServiceUnavailable, false: http.StatusCreated}[server == "cassandra"])
			local(t, append([]string{"up"}, servers...)...)
		}
		back := time.Now()
		eventually(t, "the API accepts jobs again", time.Minute, func() bool { return probes.accepted(back) })
		accepts := time.Since(back)
		ids = append(ids, probes.end()...)
		f.awaitCalls(ids)
		_, repeated := f.sink.missing(ids)
		t.Logf("%s away for %.0f s: a job was accepted %.1f s after, the last of %d jobs called %.1f s after; %d were called again",
			server, back.Sub(away).Seconds(), accepts.Seconds(), len(ids), time.Since(back).Seconds(), repeated)
		if u != nil {
			repeated += u.Duplicates()
		}
		if server == "zookeeper and s3" && repeated > 0 {
			t.Errorf("%d attempts were called again, while only %s was away", repeated, server)
		}
		f.wantUncalled(cancelled, gone)
		for _, m := range f.Members { // none of them was restarted
			f.must(m.AwaitReady(t.Context()))
		}
	}
	if u != nil {
		u.Wait()
	}
	f.check(func(a *ledger.Account) { a.HotLost, a.Stops = true, append(a.Stops, stops...) })
	if u != nil {
		t.Log(u.Summary())
	}
}
