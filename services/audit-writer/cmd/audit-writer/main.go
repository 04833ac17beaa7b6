// Command audit-writer runs an audit-writer on the real servers.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/run"
	auditor "github.com/minutehand/minutehand/services/audit-writer"
)

func main() {
	s := cluster.Service{
		Name: "audit-writer", What: "writes what became of executions into the history and the archive.",
		Variables: []cluster.Variable{
			{Name: "ARCHIVE_CLOSE_AFTER", Default: "1m", Help: "How long an object of the archive takes records at most."},
		},
		Build: func(p *cluster.Process) (run.Runner, func() []string, error) {
			cfg := auditor.DefaultConfig()
			cfg.Region = p.Config.S3.Region
			after, err := time.ParseDuration(p.Env.Text("ARCHIVE_CLOSE_AFTER", "1m"))
			if err != nil {
				return nil, nil, fmt.Errorf("%sARCHIVE_CLOSE_AFTER must be a duration like 1m", cluster.Prefix)
			}
			cfg.CloseAfter = after
			s, err := auditor.New(cfg, auditor.Deps{
				History: p.History, Archive: p.Archive, Log: p.Log, Logger: p.Logger, Metrics: p.Metrics,
			})
			return s, nil, err
		},
	}
	os.Exit(s.Main(context.Background(), os.Args[1:]))
}
