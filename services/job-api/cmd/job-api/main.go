// Command job-api runs a job-api on the real servers.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/descriptors"
	"github.com/minutehand/minutehand/libs/run"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

func main() {
	s := cluster.Service{
		Name: "job-api", What: "answers the public API.",
		Variables: []cluster.Variable{
			{Name: "LISTEN", Default: "127.0.0.1:8080", Help: "Where the API answers."},
			{Name: "AUTH_TOKEN_FILE", Help: "File with the bearer token that requests must carry."},
			{Name: "INSECURE", Default: "false", Help: "Listen beyond loopback without a token."},
		},
		Needs: []cluster.Server{cluster.Cassandra},
		Build: build,
	}
	os.Exit(s.Main(context.Background(), os.Args[1:]))
}

func build(p *cluster.Process) (run.Runner, func() []string, error) {
	cfg := jobapi.DefaultConfig()
	cfg.Partitions = p.Config.Partitions
	share, err := descriptors.Of(descriptors.Limit())
	if err != nil {
		return nil, nil, err
	}
	cfg.MaxConnections = min(cfg.MaxConnections, share.Clients)
	address := p.Env.Text("LISTEN", "127.0.0.1:8080")
	listener, err := net.Listen("tcp", address) //nolint:noctx // the listener lives as long as the process
	if err != nil {
		return nil, nil, fmt.Errorf("%sLISTEN: cannot listen on %s: %w", cluster.Prefix, address, err)
	}
	err = cfg.Protect(listener.Addr(), p.Env.Secret("AUTH_TOKEN_FILE"), p.Env.Bool("INSECURE"))
	if errors.Is(err, jobapi.ErrOpen) {
		err = fmt.Errorf("%s is not a loopback address: set %sAUTH_TOKEN_FILE, or %[2]sINSECURE to let everyone in", address, cluster.Prefix)
	}
	if err != nil {
		return nil, nil, errors.Join(err, listener.Close())
	}
	s, err := jobapi.New(cfg, jobapi.Deps{
		Jobs: p.Jobs, Pending: p.Pending, History: p.History, Settings: p.Settings, Hot: p.Hot, Records: p.Records, Listener: listener,
		Logger: p.Logger, Metrics: p.Metrics,
	})
	return s, nil, err
}
