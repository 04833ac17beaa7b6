package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// fillRate is how many executions of a backfill are due per second, aloneFor how long the load beside it is measured without it.
const fillRate, aloneFor = 500, time.Minute

// backfills measures how late a steady load is called alone, and beside a backfill of n occurrences. On the servers the bucket-loader, which
// hands the backfill's executions out, is killed in the middle of it, and started again after a while. Each of them must be called once.
func backfills(ctx context.Context, binary string, servers bool, n int) error {
	target, _, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	var rows []tierRow
	where := "in one process"
	if servers {
		where = "on the servers"
		err = withInstallation(ctx, target, serverPartitions, func(b *onServers) error {
			if err := b.fleet.StartAll(ctx, 1); err != nil {
				return err
			}
			if _, err := b.rounds(ctx, warmUps, aloneFor/2); err != nil {
				return err
			}
			rows, err = b.api().besideBackfill(ctx, target, n, b.replaceLoader)
			return err
		})
	} else {
		err = inFreshProcess(ctx, binary, func(p *process) error {
			rows, err = p.besideBackfill(ctx, target, n, nil)
			return err
		})
	}
	if err != nil {
		return err
	}
	fmt.Printf("%d cores, %s; %s, %d a second, of precision standard; ms between the instant and the arrival\n\n", runtime.NumCPU(), memory(), where, tierRate)
	fmt.Printf("| called | calls | p50 | p99 | most |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Printf("| %s | %d | %.2f | %.2f | %.1f |\n", r.name, r.n, r.p50, r.p99, r.most)
	}
	fmt.Printf("\nEach of the %d occurrences was called once.\n", n)
	return nil
}

// replaceLoader kills the bucket-loader, and starts it again when its session is over.
func (b *onServers) replaceLoader(ctx context.Context) error {
	m := b.fleet.Member("bucket-loader", 0)
	m.Signal(syscall.SIGKILL)
	<-m.Ended
	time.Sleep(15 * time.Second)
	m, err := b.fleet.Start("bucket-loader", 0)
	if err == nil {
		err = m.AwaitReady(ctx)
	}
	return err
}

// besideBackfill returns how late a steady load was called alone, and beside a backfill in the middle of which something happens.
func (p *process) besideBackfill(ctx context.Context, target string, n int, middle func(ctx context.Context) error) ([]tierRow, error) {
	takes := time.Duration(n) * time.Second / fillRate
	load := func(d time.Duration) due {
		return due{kind: "steady", precision: job.PrecisionStandard, n: int(d.Seconds()) * tierRate, rate: tierRate}
	}
	fmt.Fprintf(os.Stderr, "alone for %s\n", aloneFor)
	rows, err := p.fireTiers(ctx, target, aloneFor, []due{load(aloneFor)})
	if err != nil {
		return nil, err
	}
	rows[0].name = "alone"
	fmt.Fprintf(os.Stderr, "beside a backfill of %d\n", n)
	beside := load(takes)
	failed := make(chan error, 1)
	go func() { failed <- p.fill(ctx, target, n, beside.n, middle) }()
	more, err := p.fireTiers(ctx, target, takes, []due{beside})
	if err := errors.Join(err, <-failed); err != nil {
		return nil, err
	}
	more[0].name = fmt.Sprintf("beside a backfill of %d at %d a second", n, fillRate)
	if t, err := p.tallyOf(ctx, target, "backfill", false); err != nil || t.Count != n || t.Doubled > 0 {
		return nil, errors.Join(err, fmt.Errorf("%d of %d occurrences were called, %d twice", t.Count, n, t.Doubled))
	}
	return append(rows, more...), nil
}

// fill backfills n instants of a job that is paused, once so many jobs beside it are registered, and waits until all were called.
func (p *process) fill(ctx context.Context, target string, n, others int, middle func(ctx context.Context) error) error {
	time.Sleep(5*time.Second + time.Duration(others)*time.Second/2000)
	id, err := p.asks(ctx, "/jobs", fmt.Sprintf(`{"name":"filled","type":"cron","cron_expr":"* * * * *","target":{"kind":"http_webhook","url":%q,"body":{"text":%q}}}`,
		target+"/hook/backfill", text(ladderKB)), "job_id")
	if err != nil {
		return err
	}
	if _, err := p.asks(ctx, "/jobs/"+id+"/pause", "", "job_id"); err != nil {
		return err
	}
	to := time.Now().Add(-time.Hour).Truncate(time.Minute).UTC()
	began := time.Now()
	operation, err := p.asks(ctx, "/jobs/"+id+"/backfill", fmt.Sprintf(`{"from":%q,"to":%q,"rate_per_second":%d}`,
		to.Add(-time.Duration(n)*time.Minute).Format(time.RFC3339), to.Format(time.RFC3339), fillRate), "operation_id")
	if err != nil {
		return err
	}
	if middle != nil {
		time.Sleep(time.Duration(n) * time.Second / fillRate / 2)
		if err := middle(ctx); err != nil {
			return err
		}
	}
	t, err := p.awaitKind(ctx, target, "backfill", n)
	fmt.Fprintf(os.Stderr, "%s: the last of %d was called after %s\n", operation, t.Count, t.Last.Sub(began).Round(time.Second))
	return err
}

// asks makes a request, and returns a member of its answer.
func (p *process) asks(ctx context.Context, path, body, member string) (string, error) {
	answer, err := p.post(ctx, "/api/v1"+path, strings.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	members := map[string]any{}
	if err := json.Unmarshal(answer, &members); err != nil {
		return "", err
	}
	value, _ := members[member].(string)
	return value, nil
}
