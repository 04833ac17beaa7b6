// Command executor runs an executor on the real servers.
package main

import (
	"context"
	"os"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/descriptors"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/services/executor"
)

func main() {
	s := cluster.Service{
		Name: "executor", What: "calls the targets of what was dispatched, once each.",
		Variables: []cluster.Variable{
			{Name: "ALLOW_PRIVATE_TARGETS", Default: "false", Help: "Call loopback and private addresses."},
			{Name: "DRAIN_LIMIT", Default: "20s", Help: "How long a stop waits for calls under way; others take over what still runs then."},
		},
		Groups: []string{dispatch.GroupExecutor},
		Needs:  []cluster.Server{cluster.Cassandra, cluster.Redis, cluster.Kafka},
		Build: func(p *cluster.Process) (run.Runner, func() []string, error) {
			cfg := executor.DefaultConfig()
			cfg.AllowPrivateTargets = p.Env.Bool("ALLOW_PRIVATE_TARGETS")
			cfg.DrainLimit = p.Env.Duration("DRAIN_LIMIT", cfg.DrainLimit)
			share, err := descriptors.Of(descriptors.Limit())
			if err != nil {
				return nil, nil, err
			}
			cfg.Within(share.Calls)
			s, err := executor.New(cfg, executor.Deps{
				Jobs: p.Jobs, Pending: p.Pending, Records: p.Records, Log: p.Log, Coord: p.Coord, Board: p.Board, Logger: p.Logger, Metrics: p.Metrics,
			})
			if err != nil {
				return nil, nil, err
			}
			return s, s.Missing, nil
		},
	}
	os.Exit(s.Main(context.Background(), os.Args[1:]))
}
