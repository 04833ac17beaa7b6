package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Each service opens the servers that it works on, and carries the drivers of no others.
func TestServiceCarriesNoDriverThatItDoesNotUse(t *testing.T) {
	drivers := map[string]string{
		"cassandra": "github.com/apache/cassandra-gocql-driver/", "redis": "github.com/redis/go-redis/", "kafka": "github.com/twmb/franz-go/",
		"zookeeper": "github.com/go-zookeeper/zk", "s3": "github.com/aws/aws-sdk-go-v2/service/s3", "embedded": "github.com/cockroachdb/pebble/",
	}
	for service, uses := range map[string][]string{
		"job-api":          {"cassandra", "redis", "kafka"},
		"bucket-loader":    {"cassandra", "redis", "kafka", "zookeeper"},
		"scheduler-worker": {"cassandra", "redis", "kafka", "zookeeper"},
		"executor":         {"cassandra", "redis", "kafka", "zookeeper"},
		"retry-manager":    {"cassandra", "redis", "kafka"},
		"audit-writer":     {"cassandra", "kafka", "s3"},
	} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "github.com/minutehand/minutehand/services/"+service+"/cmd/"+service).Output() //nolint:gosec // go itself
		if err != nil {
			t.Fatal(err)
		}
		packages := strings.Fields(string(out))
		for name, prefix := range drivers {
			carries := slices.ContainsFunc(packages, func(p string) bool { return strings.HasPrefix(p, prefix) })
			if carries != slices.Contains(uses, name) {
				t.Errorf("%s carries the driver of %s: %t", service, name, carries)
			}
		}
	}
}
