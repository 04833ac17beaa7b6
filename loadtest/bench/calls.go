package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

const (
	// callHosts is how many hosts the long calls go to, callTakes how long each of them takes to answer.
	callHosts = 1000
	callTakes = 2 * time.Second
	// callWaves is how often all of them are due at one instant, callEvery apart. In the first wave each makes its connection.
	callWaves = 3
	callEvery = 20 * time.Second
)

// hosts is what the sink of the long calls says of itself: the hosts' URLs, the file with their CA, and where to ask how many calls it has.
type hosts struct {
	URLs []string `json:"urls"`
	CA   string   `json:"ca"`
	Tell string   `json:"tell"`
}

// callsNow is how many calls are open at the sink, how many were at most, and how many it has answered.
type callsNow struct {
	Open     int64 `json:"open"`
	Most     int64 `json:"most"`
	Answered int64 `json:"answered"`
}

// calls measures many calls at once over TLS, each of two seconds: how many were open together, what memory the executor takes for them,
// and how late calls of others are meanwhile.
func calls(ctx context.Context, binary string, servers bool, n int) error {
	target, _, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	dir, err := os.MkdirTemp("", "minutehand-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all, stopHosts, err := startHosts(ctx, dir)
	if err != nil {
		return err
	}
	defer stopHosts()
	c := callsBench{target: target, hosts: all, n: n}
	if servers {
		err = withInstallation(ctx, target, serverPartitions, func(b *onServers) error {
			b.fleet.Variables = append(append(b.fleet.Variables, "SSL_CERT_FILE="+all.CA), callLimits()...)
			if err := b.fleet.StartAll(ctx, 1); err != nil {
				return err
			}
			if _, err := b.rounds(ctx, warmUps, callEvery); err != nil {
				return err
			}
			for _, m := range b.fleet.Members {
				if m.Service == "executor" {
					c.pid = m.Pid()
				}
			}
			return c.measure(ctx, b.api())
		})
	} else {
		for _, variable := range append(callLimits(), "SSL_CERT_FILE="+all.CA) { // the process inherits them
			name, value, _ := strings.Cut(variable, "=")
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
		err = inFreshProcess(ctx, binary, func(p *process) error {
			c.pid = p.cmd.Process.Pid
			return c.measure(ctx, p)
		})
	}
	return err
}

// callLimits are the variables that let garbage grow as in a control group of 1 GiB: on a machine with much memory it would be most of
// what is measured.
func callLimits() []string { return []string{"GOMEMLIMIT=640MiB", "GOGC=400"} }

type callsBench struct {
	target string
	hosts  hosts
	n      int
	// pid is the process that makes the calls.
	pid int
}

func (c *callsBench) measure(ctx context.Context, p *process) error {
	others := due{kind: "others", precision: job.PrecisionStandard, n: int(callEvery.Seconds()) * tierRate, rate: tierRate}
	fmt.Fprintf(os.Stderr, "others alone for %s\n", callEvery)
	alone, err := p.fireTiers(ctx, c.target, callEvery, []due{others})
	if err != nil {
		return err
	}
	idle, err := peakOf(c.pid)
	if err != nil {
		return err
	}
	alone[0].name = "others alone"
	rows := alone
	var open []callsNow
	// Each wave is due in the middle of what is due of others.
	for wave := range callWaves {
		fmt.Fprintf(os.Stderr, "wave %d of %d\n", wave+1, callWaves)
		if err := p.reset(ctx, c.target); err != nil {
			return err
		}
		others.from = time.Now().Add(5*time.Second + time.Duration(c.n+others.n)*time.Second/2000).Truncate(time.Second)
		if err := c.register(ctx, p, others.from.Add(callEvery/3)); err != nil {
			return err
		}
		if err := p.registerTier(ctx, c.target, others); err != nil {
			return err
		}
		if time.Now().After(others.from.Add(-2 * time.Second)) {
			return errors.New("registration took longer than planned for")
		}
		row, err := p.tierOf(ctx, c.target, others.kind, fmt.Sprintf("others beside wave %d", wave+1), others.n)
		if err != nil {
			return err
		}
		rows = append(rows, row)
		now, err := c.answered(ctx, p, int64(c.n*(wave+1)))
		if err != nil {
			return err
		}
		open = append(open, now)
	}
	peak, err := peakOf(c.pid)
	if err != nil {
		return err
	}
	fmt.Printf("%d cores, %s; %d calls of %s over TLS 1.3 and HTTP/1.1 to %d hosts, due at one instant, %d times; others %d/s\n\n", runtime.NumCPU(), memory(),
		c.n, callTakes, callHosts, callWaves, tierRate)
	fmt.Printf("| called | calls | p50, ms | p99 | most | early |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Printf("| %s | %d | %.2f | %.2f | %.1f | %d |\n", r.name, r.n, r.p50, r.p99, r.most, r.early)
	}
	for i, now := range open {
		fmt.Printf("\nwave %d: %d of them open at once at most;", i+1, now.Most)
	}
	fmt.Printf("\nmemory of the process that calls, with garbage limited as in a control group of 1 GiB: %d MiB at most, resident; %d MiB at most before the first wave\n", peak>>20, idle>>20)
	return nil
}

func (c *callsBench) register(ctx context.Context, p *process, at time.Time) error {
	jobs := make([]map[string]any, c.n)
	for i := range jobs {
		jobs[i] = map[string]any{
			"name": "bench", "type": "one_shot", "run_at": at.UTC().Format("2006-01-02T15:04:05.000Z"),
			"target": map[string]any{"kind": "http_webhook", "url": c.hosts.URLs[i%len(c.hosts.URLs)], "body": map[string]any{"text": text(ladderKB)}},
		}
	}
	return p.registerJobs(ctx, jobs)
}

// answered waits until the sink has answered n calls.
func (c *callsBench) answered(ctx context.Context, p *process, n int64) (now callsNow, err error) {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		text, err := p.get(ctx, c.hosts.Tell)
		if err != nil {
			return now, err
		}
		most := now.Most // the hosts start counting again with each answer
		if err := json.Unmarshal(text, &now); err != nil {
			return now, err
		}
		if now.Most = max(now.Most, most); now.Answered >= n {
			return now, nil
		}
		if time.Now().After(deadline) {
			return now, fmt.Errorf("%d of %d calls were answered", now.Answered, n)
		}
	}
}

// startHosts starts the sink of the long calls in a process of its own, which keeps its CA in dir.
func startHosts(ctx context.Context, dir string) (all hosts, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd, err := self(ctx, "-hosts", dir)
	if err != nil {
		cancel()
		return all, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		err = json.NewDecoder(bufio.NewReader(out)).Decode(&all)
	}
	if err != nil {
		cancel()
		return all, nil, err
	}
	return all, func() { cancel(); _ = cmd.Wait() }, nil
}

// runHosts is the sink of the long calls: a listener for each host, with a certificate of its own.
func runHosts(ctx context.Context, dir string) error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	all := hosts{CA: filepath.Join(dir, "ca.pem")}
	if err := os.WriteFile(all.CA, ca.pem(), 0o600); err != nil {
		return err
	}
	var now callsNow
	server := &http.Server{ReadHeaderTimeout: 2 * time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		open := atomic.AddInt64(&now.Open, 1)
		for most := atomic.LoadInt64(&now.Most); open > most && !atomic.CompareAndSwapInt64(&now.Most, most, open); {
			most = atomic.LoadInt64(&now.Most)
		}
		time.Sleep(callTakes)
		atomic.AddInt64(&now.Open, -1)
		atomic.AddInt64(&now.Answered, 1)
	})}
	go func() { <-ctx.Done(); _ = server.Close() }()
	for i := range callHosts {
		ip := net.IPv4(127, 77, byte(i/250), byte(i%250+1))
		l, err := net.Listen("tcp", net.JoinHostPort(ip.String(), "0")) //nolint:noctx // it listens for as long as the process lives
		if err != nil {
			return err
		}
		certificate, err := ca.issue(ip)
		if err != nil {
			return err
		}
		all.URLs = append(all.URLs, "https://"+l.Addr().String()+"/call")
		config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1"}}
		go func() { _ = server.Serve(tls.NewListener(l, config)) }()
	}
	tell, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // as above
	if err != nil {
		return err
	}
	all.Tell = "http://" + tell.Addr().String()
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		return err
	}
	telling := &http.Server{ReadHeaderTimeout: 2 * time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		shown := callsNow{Open: atomic.LoadInt64(&now.Open), Most: atomic.SwapInt64(&now.Most, 0), Answered: atomic.LoadInt64(&now.Answered)}
		_ = json.NewEncoder(w).Encode(shown)
	})}
	go func() { <-ctx.Done(); _ = telling.Close() }()
	_ = telling.Serve(tell)
	return nil
}

// authority issues the hosts' certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority() (a authority, err error) {
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return a, err
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, of, of, &a.key.PublicKey, a.key)
	if err != nil {
		return a, err
	}
	a.certificate, err = x509.ParseCertificate(raw)
	return a, err
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

func (a authority) issue(ip net.IP) (c tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: ip.String()}, IPAddresses: []net.IP{ip},
		NotBefore: a.certificate.NotBefore, NotAfter: a.certificate.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, of, a.certificate, &key.PublicKey, a.key)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, err
}
