// Package cluster wires the adapters of the real servers: what a service's main needs to run on them.
package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/adapters/zookeeper"
)

// Config says where the servers are.
type Config struct {
	// Partitions is the partition count, fixed when the stores are set up.
	Partitions int
	Cassandra  cassandra.Options
	// Replication is that of the keyspace, in CQL; only a migration asks for it.
	Replication string
	Kafka       kafka.Options
	Redis       redis.Options
	ZooKeeper   zookeeper.Options
	S3          s3.Options
}

// Variable is an environment variable that a process goes by.
type Variable struct{ Name, Default, Help string }

// Prefix of all variables.
const Prefix = "MINUTEHAND_"

// variables are those of the servers. The defaults are for three nodes or more of each; infra/local/local env prints what its own
// single ones need.
func variables() []Variable {
	return []Variable{
		{"PARTITIONS", "256", "Partition count, fixed when the stores are set up."},
		{"CASSANDRA_HOSTS", "127.0.0.1:9042", "Nodes to begin with, separated by commas."},
		{"CASSANDRA_KEYSPACE", "minutehand", "Keyspace."},
		{"CASSANDRA_DATACENTER", "", "The local data centre; may be left out where there is only one."},
		{"CASSANDRA_REPLICATION", "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}", "Replication of the keyspace that a migration makes."},
		{"CASSANDRA_USERNAME", "", "User; empty for none."},
		{"CASSANDRA_PASSWORD_FILE", "", "File with the user's password."},
		{"KAFKA_BROKERS", "127.0.0.1:9092", "Brokers to begin with, separated by commas."},
		{"KAFKA_PREFIX", "minutehand.", "Prefix of topics and groups."},
		{"KAFKA_PARTITIONS", "32", "Partitions of topics that a migration makes."},
		{"KAFKA_REPLICATION", "3", "Replication factor of topics that a migration makes."},
		{"REDIS_ADDRESS", "127.0.0.1:6379", "The server; of a cluster, nodes to begin with, separated by commas."},
		{"REDIS_CLUSTER", "", "true for a Redis Cluster."},
		{"REDIS_PREFIX", "minutehand:", "Prefix of all keys."},
		{"REDIS_USERNAME", "", "User; empty for the default one."},
		{"REDIS_PASSWORD_FILE", "", "File with the user's password."},
		{"ZOOKEEPER_SERVERS", "127.0.0.1:2181", "Servers, separated by commas."},
		{"ZOOKEEPER_ROOT", "/minutehand", "Node below which everything lies."},
		{"S3_BUCKET", "minutehand", "Bucket of the archive."},
		{"S3_REGION", "us-east-1", "Its region."},
		{"S3_ENDPOINT", "", "URL of a server that is not Amazon's."},
		{"S3_ACCESS_KEY", "", "Access key; empty for the machine's own credentials."},
		{"S3_SECRET_KEY_FILE", "", "File with the secret key."},
	}
}

// Help tells of the variables of the servers, and of those that are given as well.
func Help(w io.Writer, more ...Variable) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, v := range append(more, variables()...) {
		fmt.Fprintf(t, "  %s%s\t%s\t%s\n", Prefix, v.Name, v.Default, v.Help)
	}
	return t.Flush()
}

// Env reads variables: those that are set, else their defaults. Errors tells everything that is wrong.
type Env struct {
	Lookup func(name string) (string, bool)
	// Errors are gathered as values are read.
	Errors []error
}

// Text is the value of a variable.
func (e *Env) Text(name, otherwise string) string {
	if v, ok := e.Lookup(Prefix + name); ok {
		return v
	}
	return otherwise
}

func (e *Env) wrong(name, want string) {
	e.Errors = append(e.Errors, fmt.Errorf("%s%s must be %s", Prefix, name, want))
}

// Number is the value of a variable that is a whole number of at least 1.
func (e *Env) Number(name, otherwise string) int {
	n, err := strconv.Atoi(e.Text(name, otherwise))
	if err != nil || n < 1 {
		e.wrong(name, "a whole number of at least 1")
	}
	return n
}

// Bool is the value of a variable that is true or false.
func (e *Env) Bool(name string) bool {
	b, err := strconv.ParseBool(e.Text(name, "false"))
	if err != nil {
		e.wrong(name, "true or false")
	}
	return b
}

// Duration is the value of a variable that is a length of time over 0.
func (e *Env) Duration(name string, otherwise time.Duration) time.Duration {
	d, err := time.ParseDuration(e.Text(name, otherwise.String()))
	if err != nil || d <= 0 {
		e.wrong(name, "a length of time like 90s or 5m")
	}
	return d
}

// Secret is what stands in the file that a variable names; empty where it names none.
func (e *Env) Secret(name string) string {
	file := e.Text(name, "")
	if file == "" {
		return ""
	}
	text, err := os.ReadFile(file)
	secret := strings.TrimSpace(string(text))
	if err != nil || secret == "" {
		e.wrong(name, "a file that can be read and holds a secret")
	}
	return secret
}

// FromEnv reads where the servers are.
func FromEnv(e *Env) (Config, error) {
	defaults := map[string]string{}
	for _, v := range variables() {
		defaults[v.Name] = v.Default
	}
	text := func(name string) string { return e.Text(name, defaults[name]) }
	number := func(name string) int { return e.Number(name, defaults[name]) }
	list := func(name string) []string {
		items := strings.Split(text(name), ",")
		for i := range items {
			if items[i] = strings.TrimSpace(items[i]); items[i] == "" {
				e.wrong(name, "addresses like 127.0.0.1:9042, separated by commas")
				break
			}
		}
		return items
	}
	c := Config{
		Partitions: number("PARTITIONS"), Replication: text("CASSANDRA_REPLICATION"),
		Cassandra: cassandra.Options{
			Hosts: list("CASSANDRA_HOSTS"), Keyspace: text("CASSANDRA_KEYSPACE"), Datacenter: text("CASSANDRA_DATACENTER"),
			Username: text("CASSANDRA_USERNAME"), Password: e.Secret("CASSANDRA_PASSWORD_FILE"),
		},
		Kafka: kafka.Options{
			Brokers: list("KAFKA_BROKERS"), Prefix: text("KAFKA_PREFIX"), Partitions: number("KAFKA_PARTITIONS"),
			Replication: number("KAFKA_REPLICATION"),
		},
		Redis: redis.Options{
			Address: strings.Join(list("REDIS_ADDRESS"), ","), Cluster: e.Bool("REDIS_CLUSTER"), Prefix: text("REDIS_PREFIX"), Username: text("REDIS_USERNAME"),
			Password: e.Secret("REDIS_PASSWORD_FILE"),
		},
		ZooKeeper: zookeeper.Options{Servers: list("ZOOKEEPER_SERVERS"), Root: text("ZOOKEEPER_ROOT")},
		S3: s3.Options{
			Bucket: text("S3_BUCKET"), Region: text("S3_REGION"), Endpoint: text("S3_ENDPOINT"), AccessKey: text("S3_ACCESS_KEY"),
			SecretKey: e.Secret("S3_SECRET_KEY_FILE"),
		},
	}
	c.ZooKeeper.Partitions = c.Partitions
	return c, errors.Join(e.Errors...)
}
