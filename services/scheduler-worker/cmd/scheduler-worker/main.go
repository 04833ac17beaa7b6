// Command scheduler-worker runs a scheduler-worker on the real servers.
package main

import (
	"context"
	"os"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/run"
	schedulerworker "github.com/minutehand/minutehand/services/scheduler-worker"
)

func main() {
	s := cluster.Service{
		Name: "scheduler-worker", What: "takes what is due from the partitions that it owns, and dispatches it.",
		Needs: []cluster.Server{cluster.Cassandra, cluster.Redis, cluster.Kafka},
		Build: func(p *cluster.Process) (run.Runner, func() []string, error) {
			cfg := schedulerworker.DefaultConfig()
			cfg.Partitions = p.Config.Partitions
			s, err := schedulerworker.New(cfg, schedulerworker.Deps{
				Jobs: p.Jobs, Pending: p.Pending, History: p.History, Settings: p.Settings, Hot: p.Hot, Records: p.Records, Log: p.Log, Coord: p.Coord,
				Board: p.Board, Logger: p.Logger, Metrics: p.Metrics,
			})
			if err != nil {
				return nil, nil, err
			}
			return s, s.Missing, nil
		},
	}
	os.Exit(s.Main(context.Background(), os.Args[1:]))
}
