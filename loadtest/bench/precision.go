package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// tierRate is how many jobs of a precision are due per second, tierBurst how many of the least precise are due at one instant beside all
// of them.
const tierRate, tierBurst = 200, 20_000

// tierRow is how late one kind of calls was, in ms.
type tierRow struct {
	name           string
	n, early       int
	p50, p99, most float64
}

// precision measures how late jobs of each precision are called, alone and beside a stampede of the least precise for the same host. A
// bare client, which waits with a timer for each instant and then posts, is measured before and after in the same run.
func precision(ctx context.Context, binary string, servers bool, last time.Duration) error {
	target, _, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	var rows []tierRow
	measure := func(p *process) error {
		rows, err = p.tiers(ctx, target, last)
		return err
	}
	where := "in one process"
	if servers {
		where = "on the servers"
		err = withInstallation(ctx, target, serverPartitions, func(b *onServers) error {
			if err := b.fleet.StartAll(ctx, 1); err != nil {
				return err
			}
			if _, err := b.rounds(ctx, warmUps, last/2); err != nil {
				return err
			}
			return measure(b.api())
		})
	} else {
		err = inFreshProcess(ctx, binary, measure)
	}
	if err != nil {
		return err
	}
	fmt.Printf("%d cores, %s; %s, %d a second of each for %s; ms between the instant and the arrival\n\n", runtime.NumCPU(), memory(), where, tierRate, last)
	fmt.Printf("| called | calls | p50 | p99 | most | early |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Printf("| %s | %d | %.2f | %.2f | %.1f | %d |\n", r.name, r.n, r.p50, r.p99, r.most, r.early)
	}
	return nil
}

// inFreshProcess measures one process on a folder of its own.
func inFreshProcess(ctx context.Context, binary string, measure func(p *process) error) error {
	dir, err := os.MkdirTemp("", "minutehand-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := start(ctx, binary, dir)
	if err != nil {
		return err
	}
	return errors.Join(measure(p), p.stop())
}

// due are jobs of one precision: so many per second from an instant on, or all at once.
type due struct {
	kind      string
	precision job.Precision
	n, rate   int
	from      time.Time
}

func (p *process) tiers(ctx context.Context, target string, last time.Duration) (rows []tierRow, err error) {
	n := int(last.Seconds()) * tierRate
	bare := func() error {
		if err := p.reset(ctx, target); err != nil {
			return err
		}
		cmd, err := self(ctx, "-timers", target+"/hook", "-fires", strconv.Itoa(n))
		if err != nil {
			return err
		}
		if err := cmd.Run(); err != nil {
			return errors.Join(errors.New("bare timers"), err)
		}
		row, err := p.tierOf(ctx, target, "", "a bare timer and a bare request", n)
		rows = append(rows, row)
		return err
	}
	if err := bare(); err != nil {
		return nil, err
	}
	for precision := range job.Precisions {
		fmt.Fprintf(os.Stderr, "%s for %s\n", precision, last)
		alone := due{kind: precision.String(), precision: precision, n: n, rate: tierRate}
		of, err := p.fireTiers(ctx, target, last, []due{alone})
		if err != nil {
			return nil, err
		}
		rows = append(rows, of...)
	}
	if err := bare(); err != nil {
		return nil, err
	}
	var all []due
	for precision := range job.Precisions {
		all = append(all, due{kind: precision.String(), precision: precision, n: n, rate: tierRate})
	}
	fmt.Fprintf(os.Stderr, "all beside a stampede of %d\n", tierBurst)
	of, err := p.fireTiers(ctx, target, last, append(all, due{kind: "stampede", n: tierBurst}))
	for _, r := range of {
		r.name += fmt.Sprintf(", beside %d standard ones due at one instant", tierBurst)
		rows = append(rows, r)
	}
	return rows, err
}

// fireTiers registers jobs and returns how late each kind of them was. What is due at once is due after a third of the time.
func (p *process) fireTiers(ctx context.Context, target string, last time.Duration, kinds []due) (rows []tierRow, err error) {
	if err := p.reset(ctx, target); err != nil {
		return nil, err
	}
	total := 0
	for _, k := range kinds {
		total += k.n
	}
	from := time.Now().Add(5*time.Second + time.Duration(total)*time.Second/2000).Truncate(time.Second)
	for _, k := range kinds {
		if k.from = from; k.rate == 0 {
			k.from = from.Add(last / 3)
		}
		if err := p.registerTier(ctx, target, k); err != nil {
			return nil, err
		}
	}
	if time.Now().After(from.Add(-2 * time.Second)) {
		return nil, errors.New("registration took longer than planned for")
	}
	for _, k := range kinds {
		row, err := p.tierOf(ctx, target, k.kind, k.kind, k.n)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (p *process) registerTier(ctx context.Context, target string, k due) error {
	jobs := make([]map[string]any, k.n)
	for i := range jobs {
		at := k.from
		if k.rate > 0 {
			at = at.Add(time.Duration(i) * time.Second / time.Duration(k.rate))
		}
		jobs[i] = map[string]any{
			"name": "bench", "type": "one_shot", "run_at": at.UTC().Format("2006-01-02T15:04:05.000Z"), "precision": k.precision.String(),
			"target": map[string]any{"kind": "http_webhook", "url": target + "/hook/" + k.kind, "body": map[string]any{"text": text(ladderKB)}},
		}
	}
	return p.registerJobs(ctx, jobs)
}

// tierOf waits until the sink has seen n calls of a kind, and returns how late they were.
func (p *process) tierOf(ctx context.Context, target, kind, name string, n int) (r tierRow, err error) {
	if _, err := p.awaitKind(ctx, target, kind, n); err != nil {
		return r, err
	}
	t, err := p.tallyOf(ctx, target, kind, true)
	if err != nil {
		return r, err
	}
	if t.Count != n || t.Doubled > 0 {
		return r, fmt.Errorf("%s: %d of %d were called, %d twice", name, t.Count, n, t.Doubled)
	}
	slices.Sort(t.Late)
	ms := func(i int) float64 { return float64(t.Late[i]) / 1000 }
	return tierRow{name: name, n: n, early: t.Early, p50: ms(n / 2), p99: ms(n * 99 / 100), most: ms(n - 1)}, nil
}

// runTimers posts at instants that are tierRate a second, each after a timer of its own.
func runTimers(ctx context.Context, target string, n int) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	from := time.Now().Add(time.Second).Truncate(time.Millisecond)
	var wg sync.WaitGroup
	var once sync.Once
	var failed error
	for i := range n {
		at := from.Add(time.Duration(i) * time.Second / tierRate)
		time.Sleep(time.Until(at.Add(-500 * time.Millisecond)))
		wg.Go(func() {
			time.Sleep(time.Until(at))
			if err := post(ctx, client, target, at); err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	wg.Wait()
	return failed
}
