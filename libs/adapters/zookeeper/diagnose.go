package zookeeper

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/diagnosis"
)

const (
	diagnoseWithin = 5 * time.Second
	// safeServers is how many servers an ensemble needs to go on without one.
	safeServers = 3
)

// Diagnose examines the ensemble, and who owns the partitions.
func Diagnose(ctx context.Context, o Options, r *diagnosis.Report) {
	ctx, cancel := context.WithTimeout(ctx, diagnoseWithin)
	defer cancel()
	if n := len(o.Servers); n < safeServers {
		r.Notice("zookeeper", "run three or five, in different zones", "the settings name fewer than three servers (%d): while one is away nobody takes over partitions", n)
	}
	if o.TLS == nil { // the short command exists in plain text only
		for _, server := range o.Servers {
			mode, err := modeOf(ctx, server)
			if err != nil {
				r.Wrong("zookeeper "+server, "bring it back, or allow the command srvr (4lw.commands.whitelist)", "it does not say how it is: %v", err)
			} else {
				r.Fine("zookeeper "+server, "it is up (%s)", mode)
			}
		}
	}
	o.Metrics = prometheus.NewRegistry()
	c, err := Open(o)
	if err == nil {
		defer func() { _ = c.Close() }()
		err = c.Check(ctx)
	}
	if err != nil {
		r.Wrong("zookeeper", "bring it back; partitions stay with their owners, and nobody takes over", "it gives no session: %v", err)
		return
	}
	for _, role := range []coord.Role{coord.RoleLoader, coord.RoleWorker} {
		c.owners(r, role)
	}
}

// maxSrvr bounds what is read of a server's answer.
const maxSrvr = 64 << 10

// errSilent means: a server answered something else than how it is.
var errSilent = errors.New("its answer to srvr names no mode")

// modeOf asks a server whether it leads, follows, or is alone.
func modeOf(ctx context.Context, server string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, diagnoseWithin/5)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(conn, maxSrvr))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if mode, ok := strings.CutPrefix(line, "Mode: "); ok {
			return strings.TrimSpace(mode), nil
		}
	}
	return "", errSilent
}

// owners examines whether every partition has an owner in a role.
func (c *Coordinator) owners(r *diagnosis.Report, role coord.Role) {
	subject := "partitions of " + string(role)
	members, _, err := c.conn.Children(c.at(string(role), "members"))
	if errors.Is(err, zk.ErrNoNode) {
		members, err = nil, nil
	}
	owners := []string{}
	if err == nil {
		owners, _, err = c.conn.Children(c.at(string(role), "owners"))
		if errors.Is(err, zk.ErrNoNode) {
			err = nil
		}
	}
	switch {
	case err != nil:
		r.Wrong(subject, "", "they cannot be read: %v", err)
	case len(members) == 0:
		r.Wrong(subject, "start "+string(role), "no process of the role is alive: what is due waits")
	case len(owners) < c.o.Partitions:
		r.Wrong(subject, "wait ten seconds and ask again; then runbooks/MinutehandPartitionUnowned.md", "%d of %d have no owner", c.o.Partitions-len(owners), c.o.Partitions)
	case len(members) == 1:
		r.Notice(subject, "run two or more", "one process owns all %d: when it ends, they wait for its session", c.o.Partitions)
	default:
		r.Fine(subject, "%d processes own all %d", len(members), c.o.Partitions)
	}
}
