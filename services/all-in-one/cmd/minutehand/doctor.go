package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/adapters/zookeeper"
	"github.com/minutehand/minutehand/libs/diagnosis"
	"github.com/minutehand/minutehand/libs/settings"
)

// maxProcesses bounds the processes that are asked.
const maxProcesses = 1000

type doctorCmd struct {
	client
	cluster.Settings
	settings.File
	Processes  settings.Addresses `env:"MINUTEHAND_PROCESSES" placeholder:"HOST:PORT,…" help:"Admin listeners of the services' processes. A name with several addresses, such as that of a headless Service, stands for all of them."`
	OneProcess bool               `help:"Ask the API alone: everything runs in one process, and there are no servers."`
}

// Help implements kong.HelpProvider.
func (doctorCmd) Help() string {
	return `Examines an installation from outside and says what to do: versions, clocks, owners of partitions, lags, certificates, and settings of the
servers on which promises rest. It changes nothing, but that it puts a small object into the archive's bucket, doctor/put-if-absent, to see
whether objects are replaced. It finds the servers as the services do, by MINUTEHAND_*. What is fine is counted, and shown with -o wide. The exit
code is 1 if anything is wrong.

  minutehand doctor --one-process
  MINUTEHAND_PROCESSES=minutehand-admin.default.svc:9090 minutehand doctor`
}

// errWrong makes the exit code 1; what is wrong was printed.
var errWrong = errors.New("something is wrong")

// Run implements the command.
func (c *doctorCmd) Run(ctx context.Context) error {
	var report diagnosis.Report
	c.api(ctx, &report)
	if !c.OneProcess {
		cfg, err := c.Servers(slog.New(slog.DiscardHandler))
		if err != nil {
			return usageError{err}
		}
		var asked sync.WaitGroup
		parts := make([]diagnosis.Report, 5)
		for i, examine := range []func(r *diagnosis.Report){
			func(r *diagnosis.Report) { cassandra.Diagnose(ctx, cfg.Cassandra, cfg.Partitions, r) },
			func(r *diagnosis.Report) { redis.Diagnose(ctx, cfg.Redis, r) },
			func(r *diagnosis.Report) { kafka.Diagnose(ctx, quietly(cfg.Kafka), r) },
			func(r *diagnosis.Report) { zookeeper.Diagnose(ctx, cfg.ZooKeeper, r) },
			func(r *diagnosis.Report) { s3.Diagnose(ctx, cfg.S3, r) },
		} {
			asked.Go(func() { examine(&parts[i]) })
		}
		asked.Wait()
		for i := range parts {
			report.Add(parts[i].Findings()...)
		}
		c.processes(ctx, &report)
	}
	findings := report.Findings()
	count := map[diagnosis.Level]int{}
	for _, f := range findings {
		count[f.Level]++
	}
	err := c.print(findings, func(w io.Writer) {
		t := newTable(w, status("LEVEL"), "WHAT", "FINDING")
		for _, f := range findings {
			if f.Level == diagnosis.Fine && !c.wide() {
				continue
			}
			t.row(status(f.Level), f.Subject, f.Text)
			if f.Do != "" {
				t.row(status(""), "", "→ "+f.Do)
			}
		}
		t.end()
		fmt.Fprintf(w, "%d fine (-o wide shows them), %d to know, %d wrong\n", count[diagnosis.Fine], count[diagnosis.Notice], count[diagnosis.Wrong])
	})
	if err == nil && count[diagnosis.Wrong] > 0 {
		err = errWrong
	}
	return err
}

func quietly(o kafka.Options) kafka.Options {
	o.Logger = slog.New(slog.DiscardHandler)
	return o
}

// processes examines every process, and whether they are of one release.
func (c *doctorCmd) processes(ctx context.Context, r *diagnosis.Report) {
	if len(c.Processes) == 0 {
		r.Notice("processes", "name their admin listeners with --processes", "none was named, so their versions, clocks and certificates were not looked at")
		return
	}
	var addresses []string
	for _, one := range c.Processes {
		host, port, err := net.SplitHostPort(one)
		if err != nil {
			r.Wrong("process "+one, "write HOST:PORT", "it is no address")
			continue
		}
		found, err := (&net.Resolver{}).LookupHost(ctx, host)
		if err != nil {
			r.Wrong("process "+one, "", "its name is not known: %v", err)
			continue
		}
		for _, ip := range found {
			addresses = append(addresses, net.JoinHostPort(ip, port))
		}
	}
	slices.Sort(addresses)
	if addresses = slices.Compact(addresses); len(addresses) > maxProcesses {
		r.Notice("processes", "", "there are %d, of which the first %d are examined", len(addresses), maxProcesses)
		addresses = addresses[:maxProcesses]
	}
	parts, builds := make([]diagnosis.Report, len(addresses)), make([]build, len(addresses))
	var asked sync.WaitGroup
	for i, address := range addresses {
		asked.Go(func() { builds[i] = examineProcess(ctx, "process "+address, "http://"+address, fetch, &parts[i]) })
	}
	asked.Wait()
	versions, zones := map[string]int{}, map[string]int{}
	for i := range parts {
		r.Add(parts[i].Findings()...)
		if builds[i] != (build{}) {
			versions[builds[i].version]++
			zones[builds[i].timeZones]++
		}
	}
	if len(versions) > 1 {
		r.Notice("processes", "finish the upgrade, or roll it back (runbooks/upgrade.md)", "they run different versions: %s", counted(versions))
	} else if len(versions) == 1 {
		r.Fine("processes", "all run the same version: %s", counted(versions))
	}
	if len(zones) > 1 {
		r.Wrong("processes", "run one release: they would disagree about when a local time is", "they know different time zones: %s", counted(zones))
	}
}

func counted(names map[string]int) string {
	var list []string
	for name, n := range names {
		list = append(list, fmt.Sprintf("%s (%d)", name, n))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
