package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/settings"
	"github.com/minutehand/minutehand/schemas"
)

type migrateCmd struct {
	cluster.Settings
	settings.File
	HistoryShards  *int `env:"MINUTEHAND_HISTORY_SHARDS" help:"Keep the history of each minute's one-shots in so many partitions of Cassandra from now on, once no process of the release before runs: 16 are enough for 25,000 events of 500 bytes a second. 0 goes back to a partition for each job (runbooks/upgrade.md). A migration for a restore leaves it to the backup." placeholder:"NUMBER"`
	DryRun         bool `help:"Only say where it would make what."`
	ForRestore     bool `help:"Leave the tables empty, for a backup that is imported next (runbooks/restore-cassandra.md)."`
	PrintReference bool `hidden:"" help:"Print a table of the settings, and exit."`
}

// Help implements kong.HelpProvider.
func (migrateCmd) Help() string {
	return `Makes what a cluster's services need on the servers that MINUTEHAND_* names: Cassandra's keyspace and tables, Kafka's
topics, the archive's bucket. What is there stays, so it may be run again, and must be before a new version is started.

  minutehand migrate --dry-run`
}

// Run implements the command.
func (c *migrateCmd) Run(ctx context.Context, parsed *kong.Context) error {
	if c.PrintReference {
		settings.Reference(os.Stdout, parsed)
		return nil
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg, err := c.Servers(logger)
	if err != nil {
		return usageError{err}
	}
	fmt.Printf("keyspace %s on Cassandra at %v, %d partitions\ntopics %s* on Kafka at %v\nbucket %s on S3\n", cfg.Cassandra.Keyspace,
		cfg.Cassandra.Hosts, cfg.Partitions, cfg.Kafka.Prefix, cfg.Kafka.Brokers, cfg.S3.Bucket)
	cfg.ForRestore, cfg.HistoryShards = c.ForRestore, c.HistoryShards
	if c.ForRestore {
		cfg.HistoryShards = nil // the backup says how its history is kept
	}
	if n := cfg.HistoryShards; n != nil {
		fmt.Printf("history of one-shots in %d shards of a minute from now on (0: by job)\n", *n)
	}
	if c.DryRun {
		return nil
	}
	if err := cluster.Migrate(ctx, cfg, schemas.Cassandra(), logger); err != nil {
		return err
	}
	fmt.Println("everything is there")
	return nil
}
