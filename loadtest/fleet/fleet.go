// Package fleet runs the services on the real servers as separate processes, from the binaries that make binaries builds,
// for tests and measurements.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
)

// Services returns those of a platform, in the order in which work flows.
func Services() []string {
	return []string{"job-api", "bucket-loader", "scheduler-worker", "executor", "retry-manager", "audit-writer"}
}

// Member is a service's process.
type Member struct {
	Service string
	N       int
	// Admin is the address of /readyz and /metrics, Listen that of the API.
	Admin, Listen string
	// Log is the file with its output.
	Log string
	// Ended is closed when the process has ended; Err says why.
	Ended chan struct{}
	Err   error

	cmd *exec.Cmd
}

// Pid returns its process id.
func (m *Member) Pid() int { return m.cmd.Process.Pid }

// String returns its name.
func (m *Member) String() string { return fmt.Sprint(m.Service, " ", m.N) }

// Fleet is a number of processes of each service.
type Fleet struct {
	// Binaries is the folder of the services' binaries, Dir one for their logs and secrets.
	Binaries, Dir string
	// Variables are environment variables that tell the processes where the servers are, and more.
	Variables []string
	Members   []*Member

	mu sync.Mutex // guards Members while processes start
}

// New returns a fleet for an installation, without starting anything.
func New(binaries, dir string, c cluster.Config, variables ...string) (*Fleet, error) {
	secret := filepath.Join(dir, "s3.secret")
	if err := os.WriteFile(secret, []byte(c.S3.SecretKey), 0o600); err != nil {
		return nil, err
	}
	return &Fleet{Binaries: binaries, Dir: dir, Variables: append([]string{
		"MINUTEHAND_ALLOW_PRIVATE_TARGETS=true", fmt.Sprint("MINUTEHAND_PARTITIONS=", c.Partitions),
		"MINUTEHAND_CASSANDRA_HOSTS=" + strings.Join(c.Cassandra.Hosts, ","), "MINUTEHAND_CASSANDRA_KEYSPACE=" + c.Cassandra.Keyspace,
		"MINUTEHAND_KAFKA_BROKERS=" + strings.Join(c.Kafka.Brokers, ","), "MINUTEHAND_KAFKA_PREFIX=" + c.Kafka.Prefix,
		"MINUTEHAND_REDIS_ADDRESS=" + c.Redis.Address, "MINUTEHAND_REDIS_PREFIX=" + c.Redis.Prefix,
		fmt.Sprint("MINUTEHAND_REDIS_CLUSTER=", c.Redis.Cluster),
		"MINUTEHAND_ZOOKEEPER_SERVERS=" + strings.Join(c.ZooKeeper.Servers, ","), "MINUTEHAND_ZOOKEEPER_ROOT=" + c.ZooKeeper.Root,
		"MINUTEHAND_S3_BUCKET=" + c.S3.Bucket, "MINUTEHAND_S3_ENDPOINT=" + c.S3.Endpoint, "MINUTEHAND_S3_ACCESS_KEY=" + c.S3.AccessKey,
		"MINUTEHAND_S3_SECRET_KEY_FILE=" + secret,
	}, variables...)}, nil
}

// Ports of processes are counted up from firstPort, below those that the system gives to outgoing connections. So neither
// another process nor a connection takes one between the choice and the start.
const firstPort, ports = 20_000, 10_000

var port atomic.Int32

// freeAddress returns a loopback address on which nothing listens.
func freeAddress() (string, error) {
	var err error
	for range ports {
		var l net.Listener
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+port.Add(1)%ports)
		if l, err = net.Listen("tcp", address); err == nil { //nolint:noctx // only asks whether it is free
			return address, l.Close()
		}
	}
	return "", err
}

// Start starts the n-th process of a service, replacing the previous one.
func (f *Fleet) Start(service string, n int) (*Member, error) {
	m, err := f.launch(service, n)
	if err == nil {
		f.put(m)
	}
	return m, err
}

// Surge starts a process that takes the place of the n-th of a service when it is ready, and returns the one whose place that was,
// which still runs.
func (f *Fleet) Surge(ctx context.Context, service string, n int) (before *Member, err error) {
	m, err := f.launch(service, n)
	if err != nil {
		return nil, err
	}
	if err := m.AwaitReady(ctx); err != nil {
		m.Signal(syscall.SIGKILL)
		return nil, err
	}
	before = f.Member(service, n)
	f.put(m)
	return before, nil
}

// put makes a process the n-th of its service.
func (f *Fleet) put(m *Member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Members = append(slices.DeleteFunc(f.Members, func(o *Member) bool { return o.Service == m.Service && o.N == m.N }), m)
}

// launch starts a process.
func (f *Fleet) launch(service string, n int) (*Member, error) {
	binary, err := filepath.Abs(filepath.Join(f.Binaries, service))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("there is no binary of %s; run make binaries", service)
	}
	m := &Member{Service: service, N: n, Ended: make(chan struct{}), Log: filepath.Join(f.Dir, fmt.Sprintf("%s-%d.log", service, n))}
	if m.Admin, err = freeAddress(); err != nil {
		return nil, err
	}
	if m.Listen, err = freeAddress(); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(m.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	m.cmd = exec.Command(binary) //nolint:gosec,noctx // a binary of this project, which ends by its signals
	m.cmd.Env = append(append(os.Environ(), f.Variables...), "MINUTEHAND_ADMIN_LISTEN="+m.Admin, "MINUTEHAND_LISTEN="+m.Listen)
	m.cmd.Stderr = log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The process is killed when the thread that started it ends, which is this goroutine's: it waits for the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := errors.Join(m.cmd.Start(), log.Close())
		started <- err
		if err == nil {
			m.Err = m.cmd.Wait()
			close(m.Ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return m, nil
}

// StartAll starts each processes of every service, and waits until they are ready.
func (f *Fleet) StartAll(ctx context.Context, each int) error {
	for n := range each {
		for _, s := range Services() {
			if _, err := f.Start(s, n); err != nil {
				return err
			}
		}
	}
	for _, m := range f.Members {
		if err := m.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// dialer connects to nodes of Cassandra.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// DialContext implements gocql.Dialer.
func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return d(ctx, network, address)
}

// Remove removes an installation's tables and topics. Its keys, nodes and objects are few, and stay.
func Remove(c cluster.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return Administer(ctx, c, func(tables *gocql.Session, log *kadm.Client, topics []string) error {
		_, err := log.DeleteTopics(ctx, topics...)
		return errors.Join(err, tables.Query("DROP KEYSPACE IF EXISTS "+c.Cassandra.Keyspace).ExecContext(ctx))
	})
}

// Administer connects to Cassandra and Kafka beside the services, and hands over the installation's topics. No keyspace is chosen.
func Administer(ctx context.Context, c cluster.Config, do func(tables *gocql.Session, log *kadm.Client, topics []string) error) error {
	config := gocql.NewCluster(c.Cassandra.Hosts...)
	config.Timeout = time.Minute
	if c.Cassandra.Dial != nil {
		config.Dialer = dialer(c.Cassandra.Dial)
	}
	if c.Cassandra.Username != "" {
		config.Authenticator = gocql.PasswordAuthenticator{Username: c.Cassandra.Username, Password: c.Cassandra.Password}
	}
	session, err := config.CreateSession()
	if err != nil {
		return err
	}
	defer session.Close()
	opts := []kgo.Opt{kgo.SeedBrokers(c.Kafka.Brokers...)}
	if c.Kafka.Dial != nil {
		opts = append(opts, kgo.Dialer(c.Kafka.Dial))
	}
	if c.Kafka.Username != "" {
		opts = append(opts, kgo.SASL(scram.Auth{User: c.Kafka.Username, Pass: c.Kafka.Password}.AsSha512Mechanism()))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	all, err := admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	return do(session, admin, slices.DeleteFunc(all.Names(), func(name string) bool { return !strings.HasPrefix(name, c.Kafka.Prefix) }))
}

// Member returns the n-th process of a service. It may be called while others start.
func (f *Fleet) Member(service string, n int) *Member {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.Members, func(m *Member) bool { return m.Service == service && m.N == n })
	return f.Members[i]
}

// Kill ends every process that still runs.
func (f *Fleet) Kill() {
	for _, m := range f.Members {
		m.Signal(syscall.SIGKILL)
		<-m.Ended //nolint:errcheck // it was killed
	}
}

// Signal sends a signal.
func (m *Member) Signal(s syscall.Signal) { _ = m.cmd.Process.Signal(s) }

// Bounds on waiting.
const (
	readyWithin = time.Minute
	stopWithin  = 90 * time.Second
)

// AwaitReady waits until the process reports that it is ready.
func (m *Member) AwaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		select {
		case <-m.Ended:
			return fmt.Errorf("%s ended: %w", m, m.Err)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %s", m, readyWithin)
		case <-time.After(20 * time.Millisecond):
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Admin+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			continue
		}
		if err := resp.Body.Close(); err == nil && resp.StatusCode == http.StatusOK {
			return nil
		}
	}
}

// Stop stops the process as an operator does, and waits for it.
func (m *Member) Stop() error {
	m.Signal(syscall.SIGTERM)
	select {
	case <-m.Ended:
		if m.Err != nil {
			return fmt.Errorf("%s did not stop cleanly: %w", m, m.Err)
		}
		return nil
	case <-time.After(stopWithin):
		m.Signal(syscall.SIGKILL)
		<-m.Ended //nolint:errcheck // it was killed
		return fmt.Errorf("%s has not stopped after %s", m, stopWithin)
	}
}

// StopAll stops every process, one after the other.
func (f *Fleet) StopAll() error {
	var errs []error
	for _, m := range f.Members {
		errs = append(errs, m.Stop())
	}
	return errors.Join(errs...)
}
