// Command retry-manager runs a retry-manager on the real servers.
package main

import (
	"context"
	"os"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/run"
	retrymanager "github.com/minutehand/minutehand/services/retry-manager"
)

func main() {
	s := cluster.Service{
		Name: "retry-manager", What: "settles what was executed: marks it done, writes the next attempt, or gives it up.",
		Groups: []string{dispatch.GroupSettle},
		Needs:  []cluster.Server{cluster.Cassandra, cluster.Redis, cluster.Kafka},
		Build: func(p *cluster.Process) (run.Runner, func() []string, error) {
			s, err := retrymanager.New(retrymanager.DefaultConfig(), retrymanager.Deps{
				Jobs: p.Jobs, Pending: p.Pending, History: p.History, Hot: p.Hot, Records: p.Records, Log: p.Log, Logger: p.Logger,
				Metrics: p.Metrics,
			})
			if err != nil {
				return nil, nil, err
			}
			return s, s.Missing, nil
		},
	}
	os.Exit(s.Main(context.Background(), os.Args[1:]))
}
