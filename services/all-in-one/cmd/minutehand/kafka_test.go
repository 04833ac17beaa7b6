package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// startKafka starts a cluster with a topic, whose broker is then $KAFKA.
func startKafka(ts *testscript.TestScript, _ bool, args []string) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, args...))
	ts.Check(err)
	ts.Defer(cluster.Close)
	ts.Setenv("KAFKA", cluster.ListenAddrs()[0])
}

// record waits for a record on a topic, and compares its key, its body and its headers, as NAME=VALUE, with those given; it may have others.
func record(ts *testscript.TestScript, _ bool, args []string) {
	topic, key, body, headers := args[0], args[1], args[2], args[3:]
	client, err := kgo.NewClient(kgo.SeedBrokers(ts.Getenv("KAFKA")), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ts.Check(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var seen []string
	for ctx.Err() == nil {
		for _, r := range client.PollFetches(ctx).Records() {
			has := map[string]bool{}
			for _, h := range r.Headers {
				has[h.Key+"="+string(h.Value)] = true
			}
			if string(r.Key) == key && string(r.Value) == body && !slices.ContainsFunc(headers, func(h string) bool { return !has[h] }) {
				return
			}
			seen = append(seen, fmt.Sprintf("%s %s %s", r.Key, r.Value, strings.Join(slices.Sorted(maps.Keys(has)), " ")))
		}
	}
	ts.Fatalf("there is no such record on %s: %s", topic, strings.Join(seen, "; "))
}
