package cassandra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

// Sentinel errors.
var (
	// ErrNotMigrated means: the keyspace, or a table, does not exist.
	ErrNotMigrated = errors.New("it is not there yet; run: minutehand migrate")
	// ErrReplication means: the keyspace cannot have the requested replication, or has another one.
	ErrReplication = errors.New("replication of the keyspace")
)

// Migrate creates the keyspace with the replication given, such as {'class': 'NetworkTopologyStrategy', 'dc1': 3}, and runs the
// migrations (numbered .cql files) in order. It may be run again. It returns ErrReplication, having created nothing, if the cluster
// has fewer nodes than the replicas requested, or the keyspace has other ones.
func Migrate(ctx context.Context, o Options, replication string, migrations fs.FS) error {
	bare, err := connect(o, anyKeyspace)
	if err != nil {
		return fmt.Errorf("cassandra: %w", err)
	}
	defer bare.Close()
	if err := checkReplication(ctx, bare.session, o.Keyspace, replication); err != nil {
		return fmt.Errorf("cassandra: %w", err)
	}
	create := fmt.Sprintf("CREATE KEYSPACE IF NOT EXISTS %q WITH replication = %s", o.Keyspace, replication)
	if err := bare.session.Query(create).ExecContext(ctx); err != nil {
		return fmt.Errorf("cassandra: create keyspace: %w", err)
	}
	names, err := fs.Glob(migrations, "*.cql")
	if err != nil {
		return fmt.Errorf("cassandra: migrations: %w", err)
	}
	store, err := Open(o)
	if err != nil {
		return err
	}
	defer store.Close()
	slices.Sort(names)
	for _, name := range names {
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			return fmt.Errorf("cassandra: migration %s: %w", name, err)
		}
		for _, statement := range statements(string(text)) {
			if err := store.session.Query(statement).ExecContext(ctx); err != nil {
				return fmt.Errorf("cassandra: migration %s: %w", name, err)
			}
		}
	}
	return nil
}

// statements splits a migration, whose comments are on lines of their own.
func statements(text string) (list []string) {
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			lines = append(lines, line)
		}
	}
	for _, s := range strings.Split(strings.Join(lines, ""), ";") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	return list
}

// checkReplication returns what is wrong with the requested replication. A keyspace that has too many replicas for its cluster
// accepts no write, and creating it again does not change it.
func checkReplication(ctx context.Context, session *gocql.Session, keyspace, text string) error {
	there, err := nodesOf(ctx, session)
	if err != nil {
		return err
	}
	standing, err := replicationOf(ctx, session, keyspace)
	if err != nil {
		return err
	}
	if standing == nil {
		want, err := replicas(parseReplication(text), there)
		if err != nil {
			return err
		}
		for where, n := range want {
			if have := there.in(where); n > have {
				return fmt.Errorf("%w: %d replicas are asked for, and there are %d nodes", ErrReplication, n, have)
			}
		}
		return nil
	}
	has, err := replicas(standing, there)
	if err != nil {
		return err
	}
	if has[anywhere] == 0 { // a factor for all data centres applied to those that existed
		there = has
	}
	want, err := replicas(parseReplication(text), there)
	if err != nil {
		return err
	}
	if !maps.Equal(has, want) {
		return fmt.Errorf("%w: %s has %s, not %s: ask for what it has, or run ALTER KEYSPACE and repair it", ErrReplication,
			keyspace, describe(has), describe(want))
	}
	return nil
}

// replicationOf returns the replication of a keyspace, nil if there is no such keyspace.
func replicationOf(ctx context.Context, session *gocql.Session, keyspace string) (options map[string]string, err error) {
	err = session.Query("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?", keyspace).
		Consistency(gocql.One).ScanContext(ctx, &options)
	if errors.Is(err, gocql.ErrNotFound) {
		return nil, nil
	}
	return options, err
}

// nodes counts the nodes of each data centre.
type nodes map[string]int

// anywhere stands for all data centres, which SimpleStrategy does not distinguish.
const anywhere = ""

func (n nodes) in(where string) (count int) {
	for datacenter, of := range n {
		if where == anywhere || where == datacenter {
			count += of
		}
	}
	return count
}

func nodesOf(ctx context.Context, session *gocql.Session) (nodes, error) {
	var own gocql.UUID
	var name string
	err := session.Query("SELECT host_id, data_center FROM system.local").Consistency(gocql.One).ScanContext(ctx, &own, &name)
	if err != nil {
		return nil, err
	}
	found := nodes{name: 1}
	// From the same node, which is not among its peers.
	rows := session.Query("SELECT data_center FROM system.peers_v2").Consistency(gocql.One).SetHostID(own.String()).IterContext(ctx)
	for rows.Scan(&name) {
		if name != "" { // otherwise the row is not filled yet
			found[name]++
		}
		name = ""
	}
	return found, rows.Close()
}

var replicationOption = regexp.MustCompile(`'([^']*)'\s*:\s*'?([^',}]*)`)

// parseReplication parses the options of a map in CQL.
func parseReplication(text string) map[string]string {
	options := map[string]string{}
	for _, m := range replicationOption.FindAllStringSubmatch(text, -1) {
		options[m[1]] = strings.TrimSpace(m[2])
	}
	return options
}

// replicas counts the replicas of each data centre, or those anywhere.
func replicas(options map[string]string, there nodes) (nodes, error) {
	counts := nodes{}
	network := strings.HasSuffix(options["class"], "NetworkTopologyStrategy")
	if !network && !strings.HasSuffix(options["class"], "SimpleStrategy") {
		return nil, fmt.Errorf("%w: the class must be NetworkTopologyStrategy or SimpleStrategy", ErrReplication)
	}
	for name, value := range options {
		if name == "class" {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || n == 0 && name == "replication_factor" {
			return nil, fmt.Errorf("%w: %s must be a whole number of at least 1", ErrReplication, name)
		}
		switch {
		case n == 0: // this data centre is left out
		case name != "replication_factor":
			counts[name] = n
		case !network:
			counts[anywhere] = n
		default:
			for datacenter := range there {
				if options[datacenter] == "" {
					counts[datacenter] = n
				}
			}
		}
	}
	if len(counts) == 0 {
		return nil, fmt.Errorf("%w: say replication_factor, or a number for each data centre", ErrReplication)
	}
	return counts, nil
}

// describe formats numbers of replicas.
func describe(counts nodes) string {
	var parts []string
	for _, where := range slices.Sorted(maps.Keys(counts)) {
		part := fmt.Sprintf("replication factor %d", counts[where])
		if where != anywhere {
			part += " in " + where
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}
