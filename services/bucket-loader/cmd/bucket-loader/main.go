// Command bucket-loader runs a bucket-loader on the real servers.
package main

import (
	"context"
	"os"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/run"
	bucketloader "github.com/minutehand/minutehand/services/bucket-loader"
)

func main() {
	s := cluster.Service{
		Name: "bucket-loader", What: "brings entries into the hot buckets, puts back what is missing there, and closes minutes.",
		Needs: []cluster.Server{cluster.Cassandra, cluster.Redis, cluster.Kafka},
		Build: func(p *cluster.Process) (run.Runner, func() []string, error) {
			s, err := bucketloader.New(bucketloader.DefaultConfig(), bucketloader.Deps{
				Pending: p.Pending, Hot: p.Hot, Records: p.Records, Log: p.Log, Coord: p.Coord, Logger: p.Logger, Metrics: p.Metrics,
			})
			if err != nil {
				return nil, nil, err
			}
			return s, s.Missing, nil
		},
	}
	os.Exit(s.Main(context.Background(), os.Args[1:]))
}
