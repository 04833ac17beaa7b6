package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/certificates/certificatestest"
	"github.com/minutehand/minutehand/libs/dispatch"
)

// guarded is a broker that speaks TLS only, and knows one user.
type guarded struct {
	brokers []string
	own     certificates.Files
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	a, err := certificatestest.New(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	f, err := a.Issue("kafka", "")
	if err != nil {
		t.Fatal(err)
	}
	server, err := certificates.Server(f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(server), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "minutehand", "right"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return &guarded{cluster.ListenAddrs(), certificates.Files{Authority: a.File}}
}

func (g *guarded) open(t *testing.T, f certificates.Files, password string) *kafka.Log {
	t.Helper()
	c, err := certificates.NewClient(f, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := kafka.Open(kafka.Options{
		Brokers: g.brokers, Prefix: fmt.Sprintf("t%d.", time.Now().UnixNano()), Partitions: 2, Replication: 1, Username: "minutehand", Password: password,
		Dial: c.Dial, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func TestLogIsReachedOverTLSAsAUser(t *testing.T) {
	g := newGuarded(t)
	l := g.open(t, g.own, "right")
	if err := l.EnsureTopics(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Message{{Key: "k", Value: []byte("v")}}); err != nil {
		t.Fatal(err)
	}
	if end, err := l.End(t.Context(), dispatch.TopicEvents); err != nil || end.LogID == "" {
		t.Errorf("end %v, %v", end, err)
	}
}

func TestServerOfAnUnknownAuthorityIsNamedWithTheReason(t *testing.T) {
	g := newGuarded(t)
	other, err := certificatestest.New(t.TempDir(), "other")
	if err != nil {
		t.Fatal(err)
	}
	err = g.open(t, certificates.Files{Authority: other.File}, "right").EnsureTopics(t.Context())
	if err == nil || !strings.Contains(err.Error(), g.brokers[0]) || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("%v, want what is wrong with %s", err, g.brokers[0])
	}
}

func TestWrongPasswordIsASentenceThatNamesTheBroker(t *testing.T) {
	g := newGuarded(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	err := g.open(t, g.own, "wrong").Check(ctx)
	if err == nil || !strings.Contains(err.Error(), g.brokers[0]) || !strings.Contains(err.Error(), "password of user minutehand") {
		t.Errorf("%v, want that %s refuses the user", err, g.brokers[0])
	}
}
