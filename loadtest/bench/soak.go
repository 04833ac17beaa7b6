package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/loadtest/fleet"
)

const (
	// soakRecurring is how many jobs recur every soakEvery, soakOneShots how many one-shots are due in each such time: 300/s in all.
	soakRecurring, soakOneShots = 2_700, 300
	soakEvery                   = 10 * time.Second
	// soakSamples is how often a soak is looked at.
	soakSamples = 12
	// soakLate is how late the last calls may be.
	soakLate = 30 * time.Second
	// soakGrace and soakKeeps are what a soak shortens: the time for which Cassandra keeps tombstones, and the log its records.
	soakGrace, soakKeeps = time.Minute, 10 * time.Minute
	// soakGrowth is by how much what has levelled off may still vary, as a share; on top come soakMB for what is in MB, soakCount for
	// what is counted.
	soakGrowth, soakMB, soakCount = 0.1, 1, 100
	// soakBehind is how many records a group may have before it.
	soakBehind = 5_000
)

// soak fires 300/s for a while on the real servers, with services that keep outcomes and history for minutes (build tag soak), and fails if
// memory or disk has not levelled off in the end, or a call was missing, early or doubled.
func soak(ctx context.Context, last time.Duration) error {
	target, _, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	return withInstallation(ctx, target, bucket.DefaultPartitions, func(b *onServers) error {
		b.fleet.Binaries = filepath.Join(b.fleet.Binaries, "soak")
		b.fleet.Variables = append(b.fleet.Variables, "MINUTEHAND_ARCHIVE_CLOSE_AFTER=10s")
		if err := errors.Join(b.shorten(ctx), b.fleet.StartAll(ctx, 1)); err != nil {
			return err
		}
		return b.soaked(ctx, last)
	})
}

// shorten lets the servers forget after minutes what they keep for days.
func (b *onServers) shorten(ctx context.Context) error {
	keeps := fmt.Sprint(" AND default_time_to_live = ", int(jobstore.HistoryTTL.Seconds())) // of this program, which is built with the tag too
	history := keeps + " AND compaction = {'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'MINUTES', 'compaction_window_size': 2}"
	tables := map[string]string{
		"jobs": "", "job_keys": "", "pending": "", "listings": "", "listing_days": "", "partition_progress": "", "idempotency_keys": keeps, "definitions": keeps,
		"dead_letters": keeps, "runs": keeps, "history_weeks": history, "history_minutes": history,
	}
	retention, segment := fmt.Sprint(soakKeeps.Milliseconds()), fmt.Sprint(soakKeeps.Milliseconds()/10)
	return fleet.Administer(ctx, b.config, func(session *gocql.Session, log *kadm.Client, topics []string) error {
		for table, more := range tables {
			alter := fmt.Sprintf("ALTER TABLE %s.%s WITH gc_grace_seconds = %d%s", b.config.Cassandra.Keyspace, table, int(soakGrace.Seconds()), more)
			if err := session.Query(alter).ExecContext(ctx); err != nil {
				return fmt.Errorf("%s: %w", table, err)
			}
		}
		answers, err := log.AlterTopicConfigs(ctx, []kadm.AlterConfig{
			{Op: kadm.SetConfig, Name: "retention.ms", Value: &retention}, {Op: kadm.SetConfig, Name: "segment.ms", Value: &segment},
		}, topics...)
		for _, a := range answers {
			err = errors.Join(err, a.Err)
		}
		return err
	})
}

// soaking is the load of a soak. Nothing is due at until or later.
type soaking struct {
	from, until time.Time
}

// due returns how many calls are due by an instant, and before the end.
func (s soaking) due(at time.Time) (n int) {
	if !at.Before(s.until) {
		at = s.until.Add(-time.Millisecond)
	}
	for i := range soakRecurring {
		if first := s.recurs(i); !first.After(at) {
			n += int(at.Sub(first)/soakEvery) + 1
		}
	}
	for round := 0; ; round++ {
		for i := range soakOneShots {
			if s.once(round, i).After(at) {
				return n
			}
			n++
		}
	}
}

// recurs returns the first instant of a recurring job, once that of a one-shot.
func (s soaking) recurs(i int) time.Time {
	return s.from.Add(time.Duration(i) * soakEvery / soakRecurring).Truncate(time.Millisecond)
}

func (s soaking) once(round, i int) time.Time {
	return s.from.Add(time.Duration(round)*soakEvery + time.Duration(i)*soakEvery/soakOneShots).Truncate(time.Millisecond)
}

// soaked runs the load and prints what is used.
func (b *onServers) soaked(ctx context.Context, last time.Duration) error {
	from := time.Now().Add(20 * time.Second).Truncate(time.Second)
	s := soaking{from, from.Add(last)}
	if err := b.registerRecurring(ctx, s); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	registering := make(chan struct{})
	go func() {
		defer close(registering)
		if err := b.registerOnce(ctx, s); err != nil {
			cancel(err)
		}
	}()
	defer func() { cancel(nil); <-registering }()
	fmt.Printf("%d cores, %s; %d/s for %s, %d of a hundred recurring; %d partitions\n\n", runtime.NumCPU(), memory(),
		int((soakRecurring+soakOneShots)/soakEvery.Seconds()), last, soakRecurring*100/(soakRecurring+soakOneShots), b.partitions)
	var rows []soakRow
	for i := range soakSamples {
		select {
		case <-time.After(time.Until(s.from.Add(last * time.Duration(i+1) / soakSamples))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		row, err := b.soakRow(ctx, s, rows)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		rows = append(rows, row)
		row.print(i == 0)
	}
	<-registering
	if context.Cause(ctx) != nil {
		return context.Cause(ctx)
	}
	if err := errors.Join(levelled(rows), b.complete(ctx, s)); err != nil {
		return err
	}
	fmt.Println("\neverything has levelled off, and every call came once")
	return nil
}

// complete fails if calls were missing, early or doubled in the end.
func (b *onServers) complete(ctx context.Context, s soaking) error {
	select {
	case <-time.After(time.Until(s.until.Add(soakLate))):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t, err := b.api().tally(ctx, b.target, false)
	if want := s.due(s.until); err == nil && (t.Count != want || t.Early > 0 || t.Doubled > 0) {
		err = fmt.Errorf("%d of %d calls came, %d early, %d doubled", t.Count, want, t.Early, t.Doubled)
	}
	return err
}

func (b *onServers) registerRecurring(ctx context.Context, s soaking) error {
	jobs := make([]map[string]any, soakRecurring)
	for i := range jobs {
		jobs[i] = map[string]any{
			"name": "soak", "type": "interval", "every": soakEvery.String(), "start_at": s.recurs(i).UTC().Format(time.RFC3339Nano),
			"end_at": s.until.UTC().Format(time.RFC3339Nano),
			"target": map[string]any{"kind": "http_webhook", "url": b.target + "/hook", "body": map[string]any{"text": text(ladderKB)}},
		}
	}
	return b.api().registerJobs(ctx, jobs)
}

// registerOnce registers the one-shots of each round when the one before it begins.
func (b *onServers) registerOnce(ctx context.Context, s soaking) error {
	for round := 0; s.once(round, 0).Before(s.until); round++ {
		select {
		case <-time.After(time.Until(s.once(round-1, 0))):
		case <-ctx.Done():
			return nil
		}
		var jobs []map[string]any
		for i := range soakOneShots {
			if at := s.once(round, i); at.Before(s.until) {
				jobs = append(jobs, map[string]any{
					"name": "soak", "type": "one_shot", "run_at": at.UTC().Format(time.RFC3339Nano),
					"target": map[string]any{"kind": "http_webhook", "url": b.target + "/hook", "body": map[string]any{"text": text(ladderKB)}},
				})
			}
		}
		if err := b.api().registerJobs(ctx, jobs); err != nil {
			return err
		}
	}
	return nil
}

// soakRow is what a soak has used until a moment.
type soakRow struct {
	at          time.Duration
	called, due int
	p50, p99    float64
	// behind is the most that any of groups of the log has before it.
	behind float64
	groups int
	// used is what may not grow: memory and disk by what uses it, in MB, and goroutines and open files of each service.
	used map[string]float64
}

func (b *onServers) soakRow(ctx context.Context, s soaking, before []soakRow) (r soakRow, err error) {
	now := time.Now()
	t, err := b.api().tally(ctx, b.target, true)
	if err != nil {
		return r, err
	}
	r = soakRow{at: now.Sub(s.from), called: t.Count, due: s.due(now), used: map[string]float64{}}
	late := t.Late
	if n := len(before); n > 0 {
		late = late[before[n-1].called:]
	}
	if late = slices.Sorted(slices.Values(late)); len(late) > 0 {
		r.p50, r.p99 = float64(late[len(late)/2])/1000, float64(late[len(late)*99/100])/1000
	}
	pids, err := b.processes()
	if err != nil {
		return r, err
	}
	for name, of := range pids {
		for _, pid := range of {
			bytes, err := memoryOf(pid, "VmRSS")
			if err != nil {
				return r, err
			}
			r.used[name+", resident MB"] += float64(bytes) / 1e6
		}
	}
	delete(r.used, "sink, resident MB") // these two remember every call
	delete(r.used, "load generator, resident MB")
	if err := b.counted(ctx, &r); err != nil {
		return r, err
	}
	info, err := b.redisInfo(ctx)
	if err != nil {
		return r, err
	}
	g, err := b.now(ctx)
	if err != nil {
		return r, err
	}
	cold, err := b.coldBytes(ctx, "")
	r.used["Redis, MB of keys"], r.used["Kafka, MB on disk"], r.used["Cassandra, MB on disk"] = info["used_memory"]/1e6, g.kafka/1e6, cold/1e6
	return r, err
}

// collectorPercent is what process.Collect sets GOGC to: the collector's next goal is five times of what lives.
const collectorPercent = 400

// counted adds what the services say of themselves.
func (b *onServers) counted(ctx context.Context, r *soakRow) error {
	for _, m := range b.fleet.Members {
		values, err := (&process{api: "http://" + m.Admin, client: b.client}).metrics(ctx)
		if err != nil {
			return err
		}
		r.used[m.Service+", live MB"] = values["go_memstats_next_gc_bytes"] / (1 + collectorPercent/100) / 1e6
		r.used[m.Service+", goroutines"], r.used[m.Service+", files"] = values["go_goroutines"], values["process_open_fds"]
		for name, n := range values {
			if strings.HasPrefix(name, "minutehand_log_lag_records") {
				r.behind, r.groups = max(r.behind, n), r.groups+1
			}
		}
	}
	return nil
}

func (r *soakRow) print(head bool) {
	names := slices.Sorted(maps.Keys(r.used))
	if head {
		all := append([]string{"after", "due", "called", "p50, ms", "p99", "records behind"}, names...)
		fmt.Printf("| %s |\n|%s\n", strings.Join(all, " | "), strings.Repeat("---|", len(all)))
	}
	fmt.Printf("| %s | %d | %d | %.1f | %.1f | %.0f |", r.at.Round(time.Second), r.due, r.called, r.p50, r.p99, r.behind)
	for _, name := range names {
		fmt.Printf(" %.4g |", r.used[name])
	}
	fmt.Println()
}

// levelled fails if there was more of something in the last quarter than in the one before it, or a group of the log was behind in the end.
func levelled(rows []soakRow) (err error) {
	most := func(rows []soakRow, name string) (most float64) {
		for _, r := range rows {
			most = max(most, r.used[name])
		}
		return most
	}
	last, quarter := rows[len(rows)-1], len(rows)/4
	for _, name := range slices.Sorted(maps.Keys(last.used)) {
		slack := float64(soakCount)
		if strings.Contains(name, "MB") {
			slack = soakMB
		}
		before, now := most(rows[len(rows)-2*quarter:len(rows)-quarter], name), most(rows[len(rows)-quarter:], name)
		if now > before*(1+soakGrowth)+slack {
			err = errors.Join(err, fmt.Errorf("%s: %.4g at most in the last quarter, %.4g in the one before", name, now, before))
		}
	}
	if last.groups < rows[0].groups {
		err = errors.Join(err, fmt.Errorf("of %d groups of the log %d tell how far they are", rows[0].groups, last.groups))
	}
	if last.behind > soakBehind {
		err = errors.Join(err, fmt.Errorf("a group of the log has %.0f records before it", last.behind))
	}
	return err
}
