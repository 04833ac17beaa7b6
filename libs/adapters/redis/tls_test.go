//go:build servers

package redis_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/certificates/certificatestest"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/hotbucket/hotbuckettest"
)

// guarded is a Redis that speaks TLS only, asks for a certificate, and knows a user with a password.
type guarded struct {
	t         *testing.T
	address   string
	authority *certificatestest.Authority
	own       certificates.Files
	user      string
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	dir := t.TempDir()
	a, err := certificatestest.New(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string) certificates.Files {
		f, err := a.Issue(name, "")
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	server, err := certificates.Server(issue("redis"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	strict := server.GetConfigForClient
	server.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := strict(h)
		if err == nil {
			c.ClientAuth = tls.RequireAndVerifyClientCert
		}
		return c, err
	}
	plain := servertest.Address(t, "REDIS")
	g := &guarded{t, servertest.NewTLSProxy(t, plain, server).Address(), a, issue("worker"), fmt.Sprint("user-", time.Now().UnixNano())}
	admin := goredis.NewClient(&goredis.Options{Addr: plain})
	if err := admin.ACLSetUser(t.Context(), g.user, "on", ">right", "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = admin.ACLDelUser(context.WithoutCancel(t.Context()), g.user).Err()
		_ = admin.Close()
	})
	return g
}

func (g *guarded) open(f certificates.Files, password string) *redis.Tier {
	g.t.Helper()
	c, err := certificates.NewClient(f, "", slog.New(slog.DiscardHandler))
	if err != nil {
		g.t.Fatal(err)
	}
	tier := redis.Open(redis.Options{
		Address: g.address, Username: g.user, Password: password, TLS: c, Partitions: partitions,
		Prefix: fmt.Sprintf("test-tls-%d-%d:", time.Now().UnixNano(), tiers.Add(1)),
	})
	g.t.Cleanup(func() { _ = tier.Close() })
	return tier
}

func TestConformanceOverTLSAsAUser(t *testing.T) {
	g := newGuarded(t)
	hotbuckettest.Run(t, func(t *testing.T) hotbucket.Buckets {
		h := redis.NewHotBuckets(g.open(g.own, "right"))
		t.Cleanup(func() { _ = h.Close() })
		return h
	})
}

func TestWrongCertificateOrPasswordIsASentenceThatNamesTheServer(t *testing.T) {
	g := newGuarded(t)
	other, err := certificatestest.New(t.TempDir(), "other")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Issue("worker", "")
	if err != nil {
		t.Fatal(err)
	}
	foreign.Authority = g.authority.File
	for _, c := range []struct {
		what, password, reason string
		files                  certificates.Files
	}{
		{"the server's authority is not trusted", "right", "unknown authority", certificates.Files{Certificate: g.own.Certificate, Key: g.own.Key, Authority: other.File}},
		{"no certificate", "right", "certificate required", certificates.Files{Authority: g.authority.File}},
		{"a certificate of another authority", "right", "unknown certificate authority", foreign},
		{"a wrong password", "wrong", "WRONGPASS", g.own},
	} {
		err := g.open(c.files, c.password).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), g.address) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %v, want %q at %s", c.what, err, c.reason, g.address)
		}
	}
	if err := g.open(g.own, "right").Check(t.Context()); err != nil {
		t.Error(err)
	}
}
