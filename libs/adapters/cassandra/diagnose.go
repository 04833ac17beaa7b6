package cassandra

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/minutehand/minutehand/libs/diagnosis"
	"github.com/minutehand/minutehand/libs/jobstore"
)

const (
	// diagnoseWithin bounds the examination of one node, and that of the keyspace.
	diagnoseWithin = 12 * time.Second
	// leastMajor is the oldest version with the compaction that buckets need.
	leastMajor = 5
	// safeReplicas is the replication below which a lost disk loses jobs.
	safeReplicas = 3
)

// tables are those of the schema, with the time to live that reads count on; 0 where rows are kept until they are deleted.
func tables() map[string]int {
	const day = 86_400
	return map[string]int{
		"jobs": 0, "job_keys": 0, "runs": 60 * day, "pending": 0, "partition_progress": 0, "cluster": 0, "lists": 0, "listings": 0, "listing_days": 0,
		"definitions": 30 * day, "dead_letters": 30 * day, "history_weeks": 30 * day, "history_minutes": 30 * day, "idempotency_keys": day,
	}
}

// Diagnose examines the nodes, the keyspace and its tables.
func Diagnose(ctx context.Context, o Options, partitions int, r *diagnosis.Report) {
	const unreachable = "bring it back; until then nothing is accepted, and due work waits (runbooks/lost-cassandra-node.md)"
	store, err := Open(o)
	if errors.Is(err, ErrNotMigrated) {
		r.Wrong("cassandra", "minutehand migrate", "there is no keyspace %s", o.Keyspace)
		return
	}
	if err != nil {
		r.Wrong("cassandra", unreachable, "it does not answer: %v", err)
		return
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(ctx, diagnoseWithin)
	defer cancel()
	hosts, err := store.addresses(ctx)
	if err != nil {
		r.Wrong("cassandra", unreachable, "its nodes cannot be read: %v", err)
		return
	}
	parts := make([]diagnosis.Report, len(hosts))
	var asked sync.WaitGroup // one that hangs must not hide the others
	for i, host := range hosts {
		asked.Go(func() { o.node(ctx, &parts[i], host) })
	}
	defer func() {
		asked.Wait()
		for i := range parts {
			r.Add(parts[i].Findings()...)
		}
	}()
	if err := store.CheckDatacenter(ctx, o.Datacenter); err != nil {
		r.Wrong("cassandra", "set MINUTEHAND_CASSANDRA_DATACENTER", "%v", err)
	}
	switch err := store.CheckPartitions(ctx, partitions); {
	case errors.Is(err, jobstore.ErrPartitions):
		r.Wrong("cassandra", "set MINUTEHAND_PARTITIONS to what the installation was made with, everywhere", "%v", err)
	case err != nil:
		r.Wrong("cassandra", "", "the partition count cannot be read: %v", err)
	default:
		r.Fine("cassandra", "the installation has %d partitions, as the settings say", partitions)
	}
	store.keyspace(ctx, r, o.Keyspace)
}

// addresses returns the nodes' addresses, host:port.
func (s *Store) addresses(ctx context.Context) (list []string, err error) {
	var own gocql.UUID
	var address net.IP
	var port int
	err = s.session.Query("SELECT host_id, rpc_address, rpc_port FROM system.local").Consistency(gocql.One).ScanContext(ctx, &own, &address, &port)
	if err != nil {
		return nil, err
	}
	list = append(list, net.JoinHostPort(address.String(), strconv.Itoa(port)))
	rows := s.session.Query("SELECT native_address, native_port FROM system.peers_v2").Consistency(gocql.One).SetHostID(own.String()).IterContext(ctx)
	for rows.Scan(&address, &port) {
		if len(address) > 0 {
			list = append(list, net.JoinHostPort(address.String(), strconv.Itoa(port)))
		}
	}
	slices.Sort(list)
	return list, rows.Close()
}

// node examines one node, which alone is asked.
func (o Options) node(ctx context.Context, r *diagnosis.Report, host string) {
	subject := "cassandra " + host
	o.Hosts = []string{host}
	s, err := connect(o, func(c *gocql.ClusterConfig) {
		c.HostFilter, c.DisableInitialHostLookup = gocql.WhiteListHostFilter(host), true
	})
	var version string
	var id gocql.UUID
	var before, after time.Time
	if err == nil {
		defer s.Close()
		q := s.session.Query("SELECT release_version, now() FROM system.local").Consistency(gocql.One)
		before = time.Now()
		err = q.ScanContext(ctx, &version, &id)
		after = time.Now()
	}
	if err != nil {
		r.Wrong(subject, "bring it back before another one fails (runbooks/lost-cassandra-node.md)", "it does not answer: %v", err)
		return
	}
	r.Clock(subject, id.Time(), before, after, time.Millisecond)
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < leastMajor {
		r.Wrong(subject, "upgrade it", "it is version %s, and %d is needed", version, leastMajor)
		return
	}
	r.Fine(subject, "it is version %s", version)
}

// keyspace examines replication, and the settings of tables.
func (s *Store) keyspace(ctx context.Context, r *diagnosis.Report, keyspace string) {
	subject := "cassandra keyspace " + keyspace
	standing, err := replicationOf(ctx, s.session, keyspace)
	var there, counts nodes
	if err == nil {
		if there, err = nodesOf(ctx, s.session); err == nil {
			counts, err = replicas(standing, there)
		}
	}
	if err != nil {
		r.Wrong(subject, "", "its replication cannot be read: %v", err)
		return
	}
	for where, n := range counts {
		switch {
		case n > there.in(where):
			r.Wrong(subject, "add nodes, or ALTER KEYSPACE", "it asks for %d replicas, and there are %d nodes: nothing can be written at quorum", n, there.in(where))
		case n < safeReplicas:
			r.Notice(subject, "run three nodes or more, ALTER KEYSPACE to three replicas, and repair", "it has %s: a lost disk loses jobs", describe(counts))
		default:
			r.Fine(subject, "it has %s", describe(counts))
		}
	}
	want := tables()
	rows := s.session.Query("SELECT table_name, default_time_to_live, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = ?", keyspace).
		Consistency(gocql.One).IterContext(ctx)
	var name string
	var ttl, grace int
	found := 0
	for rows.Scan(&name, &ttl, &grace) {
		expected, ours := want[name]
		if !ours {
			continue
		}
		delete(want, name)
		found++
		switch {
		case expected == 0 && ttl != 0:
			r.Wrong(subject, "ALTER TABLE "+name+" WITH default_time_to_live = 0", "rows of %s expire after %d s: jobs would vanish", name, ttl)
		case ttl < expected && ttl != 0:
			r.Wrong(subject, "ALTER TABLE "+name+" WITH default_time_to_live = "+strconv.Itoa(expected), "rows of %s expire after %d s, and are promised for %d", name, ttl, expected)
		case grace == 0:
			r.Wrong(subject, "ALTER TABLE "+name+" WITH gc_grace_seconds = 86400", "gc_grace_seconds of %s is 0: a node that was away would bring back what was deleted", name)
		}
	}
	if err := rows.Close(); err != nil {
		r.Wrong(subject, "", "its tables cannot be read: %v", err)
		return
	}
	if len(want) > 0 {
		missing := make([]string, 0, len(want))
		for name := range want {
			missing = append(missing, name)
		}
		slices.Sort(missing)
		r.Wrong(subject, "minutehand migrate", "it lacks the tables %s", strings.Join(missing, ", "))
		return
	}
	r.Fine(subject, "its %d tables are there", found)
}
