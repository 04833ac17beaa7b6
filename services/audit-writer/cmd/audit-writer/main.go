// Command audit-writer runs an audit-writer on the real servers.
package main

import (
	"context"
	"os"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/run"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

func main() {
	s := cluster.Service{
		Name: "audit-writer", What: "writes what became of executions into the history and the archive.",
		Variables: []cluster.Variable{
			{Name: "ARCHIVE_CLOSE_AFTER", Default: "1m", Help: "How long an object of the archive takes records at most."},
		},
		Groups: []string{dispatch.GroupHistory, dispatch.GroupArchive},
		Needs:  []cluster.Server{cluster.Cassandra, cluster.Kafka, cluster.S3},
		Build: func(p *cluster.Process) (run.Runner, func() []string, error) {
			cfg := auditwriter.DefaultConfig()
			cfg.Region = p.Config.S3.Region
			cfg.CloseAfter = p.Env.Duration("ARCHIVE_CLOSE_AFTER", cfg.CloseAfter)
			s, err := auditwriter.New(cfg, auditwriter.Deps{
				History: p.History, Archive: p.Archive, Log: p.Log, Logger: p.Logger, Metrics: p.Metrics,
			})
			if err != nil {
				return nil, nil, err
			}
			return s, s.Missing, nil
		},
	}
	os.Exit(s.Main(context.Background(), os.Args[1:]))
}
