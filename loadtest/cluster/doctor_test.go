//go:build servers

package cluster_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/diagnosis"
	"github.com/minutehand/minutehand/libs/dispatch"
)

// doctor asks minutehand doctor about the platform.
func (f *platform) doctor(variables ...string) (findings []diagnosis.Finding, exit int) {
	f.t.Helper()
	var processes []string
	for _, m := range f.Members {
		processes = append(processes, m.Admin)
	}
	cmd := exec.CommandContext(f.t.Context(), "../../.bin/minutehand", "doctor", "-o", "json", "--processes", strings.Join(processes, ","),
		"--server", "http://"+f.Member("job-api", 0).Listen) //nolint:gosec // ours
	cmd.Env = slices.Concat(os.Environ(), f.Variables, []string{fmt.Sprint("MINUTEHAND_KAFKA_PARTITIONS=", kafkaPartitions)}, variables)
	out, err := cmd.Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		exit, err = ended.ExitCode(), nil
	}
	f.must(err)
	f.must(json.Unmarshal(out, &findings))
	return findings, exit
}

// Every finding that a running installation can be brought to is made, told with what to do about it, and gone when it is mended.
func TestDoctorTellsWhatIsWrongAndWhatToDo(t *testing.T) {
	f := newInstallation(t).fleet()
	wrong := func(variables ...string) (list []string) {
		findings, exit := f.doctor(variables...)
		for _, one := range findings {
			if one.Level == diagnosis.Fine {
				continue
			}
			if one.Level == diagnosis.Wrong {
				list = append(list, one.Subject+": "+one.Text)
			}
			if one.Do == "" {
				t.Errorf("%s: %s: and what is to be done?", one.Subject, one.Text)
			}
		}
		if (exit == 1) != (len(list) > 0) {
			t.Errorf("the exit code is %d for %v", exit, list)
		}
		return list
	}
	eventually(t, "nothing is wrong", session*2, func() bool { return len(wrong()) == 0 })

	cold := gocql.NewCluster(f.config.Cassandra.Hosts...)
	cold.Keyspace = f.config.Cassandra.Keyspace
	session, err := cold.CreateSession()
	f.must(err)
	defer session.Close()
	cql := func(statement string) func() {
		return func() { f.must(session.Query(statement).ExecContext(t.Context())) }
	}
	hot := redis.NewClient(&redis.Options{Addr: servertest.Address(t, "REDIS")})
	defer func() { _ = hot.Close() }()
	policy := func(to string) func() {
		return func() {
			f.must(hot.ConfigSet(t.Context(), "maxmemory", map[bool]string{true: "0", false: "4gb"}[to == "noeviction"]).Err())
			f.must(hot.ConfigSet(t.Context(), "maxmemory-policy", to).Err())
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(f.config.Kafka.Brokers...))
	f.must(err)
	defer client.Close()
	topic := f.config.Kafka.Prefix + dispatch.TopicEvents
	alter := func(name, value string) func() {
		return func() {
			change := kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value}
			if value == "" {
				change = kadm.AlterConfig{Op: kadm.DeleteConfig, Name: name}
			}
			answers, err := kadm.NewClient(client).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{change}, topic)
			f.must(err)
			f.must(answers[0].Err)
		}
	}
	for _, c := range []struct {
		want       string
		make, mend func()
	}{
		{"redis 127.0.0.1:6379: it may evict keys (allkeys-lru)", policy("allkeys-lru"), policy("noeviction")},
		{topic + ": it keeps records for 1m0s only", alter("retention.ms", "60000"), alter("retention.ms", "")},
		{topic + ": max.message.bytes is 1000", alter("max.message.bytes", "1000"), alter("max.message.bytes", "8388608")},
		{topic + ": its records carry the time of their senders", alter("message.timestamp.type", "CreateTime"), alter("message.timestamp.type", "LogAppendTime")},
		{topic + ": its cleanup.policy is compact", alter("cleanup.policy", "compact"), alter("cleanup.policy", "")},
		{topic + ": a replica that is not in step may become leader", alter("unclean.leader.election.enable", "true"), alter("unclean.leader.election.enable", "")},
		{"rows of jobs expire after 60 s", cql("ALTER TABLE jobs WITH default_time_to_live = 60"), cql("ALTER TABLE jobs WITH default_time_to_live = 0")},
		{
			"rows of dead_letters expire after 60 s, and are promised for 2592000", cql("ALTER TABLE dead_letters WITH default_time_to_live = 60"),
			cql("ALTER TABLE dead_letters WITH default_time_to_live = 2592000"),
		},
		{"gc_grace_seconds of pending is 0", cql("ALTER TABLE pending WITH gc_grace_seconds = 0"), cql("ALTER TABLE pending WITH gc_grace_seconds = 86400")},
		{"no process of the role is alive", func() { f.end2("bucket-loader") }, func() { f.begin2("bucket-loader") }},
		{"group " + f.config.Kafka.Prefix + "retry-manager: nobody reads events", func() { f.end2("retry-manager") }, func() { f.begin2("retry-manager") }},
	} {
		c.make()
		got := wrong()
		eventually(t, "it tells: "+c.want, 20e9, func() bool {
			got = wrong()
			return slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, c.want) })
		})
		c.mend()
		eventually(t, "it is mended: "+c.want, 40e9, func() bool { return len(wrong()) == 0 })
	}
	var asked sync.WaitGroup // these mostly wait
	for variable, want := range map[string]string{
		"MINUTEHAND_PARTITIONS=16":                  "(8)",
		"MINUTEHAND_S3_BUCKET=nobodys":              "it cannot be used",
		"MINUTEHAND_CASSANDRA_KEYSPACE=nobodys":     "there is no keyspace nobodys",
		"MINUTEHAND_KAFKA_PREFIX=nobodys.":          "it is not there",
		"MINUTEHAND_REDIS_ADDRESS=127.0.0.1:1":      "redis 127.0.0.1:1: it does not answer",
		"MINUTEHAND_ZOOKEEPER_SERVERS=127.0.0.1:1":  "it does not say how it is",
		"MINUTEHAND_KAFKA_BROKERS=127.0.0.1:1":      "kafka: it does not answer",
		"MINUTEHAND_CASSANDRA_HOSTS=127.0.0.1:1":    "cassandra: it does not answer",
		"MINUTEHAND_CASSANDRA_DATACENTER=elsewhere": "there is no elsewhere",
	} {
		asked.Go(func() {
			if got := wrong(variable); !slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, want) }) {
				t.Errorf("with %s it tells %v, want %q", variable, got, want)
			}
		})
	}
	asked.Wait()
}

// end2 kills both processes of a service, and begin2 starts them again.
func (f *platform) end2(service string) {
	for n := range 2 {
		f.Member(service, n).Signal(syscall.SIGKILL)
		<-f.Member(service, n).Ended //nolint:errcheck // it was killed
	}
}

func (f *platform) begin2(service string) {
	for n := range 2 {
		f.restart(service, n)
	}
}
