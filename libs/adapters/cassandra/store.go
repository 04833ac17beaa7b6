// Package cassandra is the cold store on Cassandra: job rows, minute buckets, history and settings. schemas/cassandra holds the
// tables.
//
// Reads and writes use LOCAL_QUORUM, lightweight transactions LOCAL_SERIAL. The writes for a fire are sent in batches of one
// partition. The driver retries only what is idempotent by itself; a transaction never is.
package cassandra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
)

// Options say where the cluster is.
type Options struct {
	Hosts    []string // host:port
	Keyspace string
	// Datacenter is the local one; empty treats every node as local.
	Datacenter         string
	Username, Password string
	// Timeout bounds one request; 0 means 5 s.
	Timeout time.Duration
	// Dial connects to a node; nil means as usual.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Observe, if it is not nil, is called for every request that was answered or failed.
	Observe func(Request)
}

// Request is a statement, or the statements of a batch, as sent to the cluster.
type Request struct {
	Statements []string
	Values     [][]any // of each statement; must not be changed, or logged
	Took       time.Duration
	Err        error
}

// observer reports requests.
type observer func(Request)

// ObserveQuery implements gocql.QueryObserver.
func (o observer) ObserveQuery(_ context.Context, q gocql.ObservedQuery) {
	o(Request{[]string{q.Statement}, [][]any{q.Values}, q.End.Sub(q.Start), q.Err})
}

// ObserveBatch implements gocql.BatchObserver.
func (o observer) ObserveBatch(_ context.Context, b gocql.ObservedBatch) {
	o(Request{b.Statements, b.Values, b.End.Sub(b.Start), b.Err})
}

const (
	// connectTimeout bounds the making of a connection.
	connectTimeout = 5 * time.Second
	// maxBatch bounds the rows of one batch, concurrency the requests that one call has in flight.
	maxBatch    = 100
	concurrency = 32
	// inRows bounds the keys of one IN.
	inRows = 50
)

// neverConvicts keeps the pool of a node to which no connection can be made; queries pass it by, and each of them makes the pool try again.
// A pool that gives up is removed, and a connection of it that succeeded just before marks the node as up afterwards: nobody connects to a
// node that is up, so a process could find no node ever again (seen in gocql 2.1.2: fill, fillingStopped and handleNodeConnected race).
type neverConvicts struct{}

// AddFailure implements gocql.ConvictionPolicy.
func (neverConvicts) AddFailure(error, *gocql.HostInfo) bool { return false }

// Reset implements gocql.ConvictionPolicy.
func (neverConvicts) Reset(*gocql.HostInfo) {}

// Store is a connection to the cluster, which the ports share.
type Store struct {
	session *gocql.Session
	dialer  *dialer
}

func config(o Options) *gocql.ClusterConfig {
	c := gocql.NewCluster(o.Hosts...)
	c.Consistency, c.SerialConsistency = gocql.LocalQuorum, gocql.LocalSerial
	c.Timeout = o.Timeout
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	c.ConnectTimeout, c.WriteTimeout = connectTimeout, c.Timeout
	fallback := gocql.RoundRobinHostPolicy()
	if o.Datacenter != "" {
		fallback = gocql.DCAwareRoundRobinPolicy(o.Datacenter)
	}
	c.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(fallback)
	c.ReconnectInterval = time.Second
	c.ConvictionPolicy = neverConvicts{}
	if o.Observe != nil {
		c.QueryObserver, c.BatchObserver = observer(o.Observe), observer(o.Observe)
	}
	if o.Username != "" {
		c.Authenticator = gocql.PasswordAuthenticator{Username: o.Username, Password: o.Password}
	}
	return c
}

// connect connects as the options say; changes are made to what follows from them.
func connect(o Options, changes func(c *gocql.ClusterConfig)) (*Store, error) {
	c, d := config(o), newDialer(o.Dial)
	c.Dialer = d
	changes(c)
	session, err := c.CreateSession()
	if err != nil {
		d.close()
		return nil, err
	}
	return &Store{session, d}, nil
}

// anyKeyspace is for what is asked about the cluster.
func anyKeyspace(*gocql.ClusterConfig) {}

// Open connects to a keyspace that Migrate created; otherwise the error is ErrNotMigrated.
func Open(o Options) (*Store, error) {
	s, err := connect(o, func(c *gocql.ClusterConfig) { c.Keyspace = o.Keyspace })
	if err != nil {
		// The driver does not say why: it may only lack the keyspace.
		if bare, without := connect(o, anyKeyspace); without == nil {
			defer bare.Close()
			if standing, asked := replicationOf(context.Background(), bare.session, o.Keyspace); asked == nil && standing == nil {
				err = fmt.Errorf("keyspace %s: %w", o.Keyspace, ErrNotMigrated)
			}
		}
		return nil, fmt.Errorf("cassandra at %s: %w", strings.Join(o.Hosts, ","), err)
	}
	return s, nil
}

// closeWithin bounds how long Close waits for the driver. The driver waits for ever if its control connection is reconnecting at
// that moment (seen in gocql 2.1.2: the schema refresh that the reconnection asks for is stopped first).
const closeWithin = 5 * time.Second

// Close closes the connections.
func (s *Store) Close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.session.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeWithin):
	}
	s.dialer.close()
}

// Check reports whether the cluster answers.
func (s *Store) Check(ctx context.Context) error {
	return failed("check", s.session.Query("SELECT release_version FROM system.local").ExecContext(ctx))
}

// ErrDatacenter means: the cluster has several data centres, and the settings do not name the local one.
var ErrDatacenter = errors.New("the cluster has several data centres: say which is the local one")

// CheckDatacenter returns ErrDatacenter if the local data centre was not named and there are several. A lightweight transaction
// would then be serial within whichever data centre answers it: two of them could both win.
func (s *Store) CheckDatacenter(ctx context.Context, local string) error {
	there, err := nodesOf(ctx, s.session)
	if err != nil {
		return failed("check", err)
	}
	return checkDatacenter(there, local)
}

func checkDatacenter(there nodes, local string) error {
	names := slices.Sorted(maps.Keys(there))
	switch {
	case local == "" && len(names) > 1:
		return fmt.Errorf("cassandra: %w (%s)", ErrDatacenter, strings.Join(names, ", "))
	case local != "" && there[local] == 0:
		return fmt.Errorf("cassandra: %w: there is no %s, but %s", ErrDatacenter, local, strings.Join(names, ", "))
	}
	return nil
}

// partitionsSetting is the name of the setting that holds the partition count.
const partitionsSetting = "partitions"

// CheckPartitions returns ErrPartitions if the store was set up with another count, because jobs would then be looked for where
// they are not. A store that was not set up yet has no count.
func (s *Store) CheckPartitions(ctx context.Context, want int) error {
	standing, err := NewSettings(s).Setting(ctx, partitionsSetting)
	var invalid gocql.RequestError
	if errors.As(err, &invalid) && invalid.Code() == gocql.ErrCodeInvalid { // there is no such table
		return fmt.Errorf("cassandra: %w", ErrNotMigrated)
	}
	if err == nil && len(standing) > 0 && string(standing) != strconv.Itoa(want) {
		err = fmt.Errorf("cassandra: %d partitions: %w (%s)", want, jobstore.ErrPartitions, standing)
	}
	return err
}

// SetUp gives every partition a low-water mark, unless it has one: a minute before now, so that the first registrations lie above
// it by every clock. The first call fixes the partition count.
func (s *Store) SetUp(ctx context.Context, partitions int, minute int64) error {
	err := NewSettings(s).SwapSetting(ctx, partitionsSetting, nil, []byte(strconv.Itoa(partitions)))
	if errors.Is(err, jobstore.ErrConflict) {
		err = s.CheckPartitions(ctx, partitions)
	}
	if err != nil {
		return err
	}
	return run.Each(partitions, concurrency, func(p int) error {
		q := s.session.Query("INSERT INTO partition_progress (partition, low_water) VALUES (?, ?) IF NOT EXISTS", p, minute-1)
		_, err := q.MapScanCASContext(ctx, map[string]any{})
		return failed("set up", err)
	})
}

func failed(what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, gocql.ErrNotFound) {
		err = jobstore.ErrNotFound
	}
	return fmt.Errorf("cassandra: %s: %w", what, err)
}
