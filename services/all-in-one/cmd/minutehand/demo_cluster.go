package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

// onCluster plays the demo on services that run already, and reads the archive and the dead letters where they lie.
func (c *demoCmd) onCluster(ctx context.Context) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg, err := c.Servers.Servers(logger)
	if err != nil {
		return usageError{err}
	}
	servers, err := cluster.Open(ctx, cfg, logger, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	defer servers.Close()
	sink := &demoSink{seen: map[demoKey]int{}}
	stopSink, sinkURL, err := sink.start()
	if err != nil {
		return err
	}
	defer stopSink()
	// The servers may have just started.
	d := &demo{
		client: client{Server: c.Server}, jobs: c.Jobs, each: 4 * time.Millisecond, window: c.Over,
		sink: sink, sinkURL: sinkURL, name: newDemoName(), brokers: c.demoBrokers(),
	}
	if err := d.play(ctx); err != nil {
		return err
	}
	var archived []auditwriter.Archived
	for deadline := time.Now().Add(demoPatience + time.Minute); ; {
		all, err := auditwriter.ReadArchive(ctx, servers.Archive)
		if err != nil {
			return err
		}
		if archived = d.own(all); len(archived) > d.expected()+d.refused()+d.jobs+1 || time.Now().After(deadline) {
			break
		}
		if err := run.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	letters := 0
	for cursor := ""; ; {
		page, next, err := servers.History.DeadLetters(ctx, job.DefaultTenant, cursor, 500)
		if err != nil {
			return err
		}
		for i := range page {
			if d.ids[page[i].Event.Entry.JobID] {
				letters++
			}
		}
		if cursor = next; next == "" {
			return d.report(os.Stdout, archived, letters)
		}
	}
}

// own are the events of this demo's jobs.
func (d *demo) own(all []auditwriter.Archived) (list []auditwriter.Archived) {
	for _, x := range all {
		if ref, err := job.ParseExecutionID(executionOf(x.EventID)); err == nil && d.ids[ref.JobID] {
			list = append(list, x)
		}
	}
	return list
}
