package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/jobstore"
)

const (
	// soakRecurring is how many jobs recur every soakEvery, soakOneShots how many one-shots are due in each such time: 300/s in all.
	soakRecurring, soakOneShots = 2_700, 300
	soakEvery                   = 10 * time.Second
	// soakSamples is how often a soak is looked at.
	soakSamples = 12
	// soakLate is how late a call may be before it is told as missing.
	soakLate = 10 * time.Second
	// soakGrace and soakKeeps are what a soak shortens: the time for which Cassandra keeps tombstones, and the log its records.
	soakGrace, soakKeeps = time.Minute, 10 * time.Minute
	// soakGrowth is by how much what has levelled off may still vary, as a share, and soakSlack in MB: 16 bytes for a fire of a quarter of an hour.
	soakGrowth, soakSlack = 0.1, 4
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
	config := gocql.NewCluster("127.0.0.1:" + os.Getenv("CASSANDRA_PORT"))
	config.Keyspace, config.Timeout = b.keyspace, time.Minute
	session, err := config.CreateSession()
	if err != nil {
		return err
	}
	defer session.Close()
	keeps := int(jobstore.HistoryTTL.Seconds()) // of this program, which is built with the tag too
	for table, more := range map[string]string{
		"jobs": "", "pending": "", "listings": "", "listing_days": "", "partition_progress": "", "idempotency_keys": fmt.Sprint(" AND default_time_to_live = ", keeps),
		"definitions": fmt.Sprint(" AND default_time_to_live = ", keeps), "dead_letters": fmt.Sprint(" AND default_time_to_live = ", keeps),
		"history_weeks": fmt.Sprintf(" AND default_time_to_live = %d AND compaction = {'class': 'TimeWindowCompactionStrategy', "+
			"'compaction_window_unit': 'MINUTES', 'compaction_window_size': 2}", keeps),
	} {
		if err := session.Query(fmt.Sprintf("ALTER TABLE %s WITH gc_grace_seconds = %d%s", table, int(soakGrace.Seconds()), more)).ExecContext(ctx); err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:" + os.Getenv("KAFKA_PORT")))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	ours := slices.DeleteFunc(topics.Names(), func(name string) bool { return !strings.HasPrefix(name, b.keyspace+".") })
	retention, segment := fmt.Sprint(soakKeeps.Milliseconds()), fmt.Sprint(soakKeeps.Milliseconds()/10)
	answers, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "retention.ms", Value: &retention}, {Op: kadm.SetConfig, Name: "segment.ms", Value: &segment},
	}, ours...)
	for _, a := range answers {
		err = errors.Join(err, a.Err)
	}
	return err
}

// soaking is the load of a soak.
type soaking struct {
	from, until time.Time
}

// due returns how many calls are due by an instant.
func (s soaking) due(at time.Time) (n int) {
	if at.After(s.until) {
		at = s.until
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
			return err
		}
		rows = append(rows, row)
		row.print(i == 0)
	}
	return told(rows)
}

func (b *onServers) registerRecurring(ctx context.Context, s soaking) error {
	jobs := make([]map[string]any, soakRecurring)
	for i := range jobs {
		jobs[i] = map[string]any{
			"name": "soak", "type": "interval", "every": soakEvery.String(), "start_at": s.recurs(i).UTC().Format(time.RFC3339Nano),
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
		jobs := make([]map[string]any, soakOneShots)
		for i := range jobs {
			jobs[i] = map[string]any{
				"name": "soak", "type": "one_shot", "run_at": s.once(round, i).UTC().Format(time.RFC3339Nano),
				"target": map[string]any{"kind": "http_webhook", "url": b.target + "/hook", "body": map[string]any{"text": text(ladderKB)}},
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
	at                              time.Duration
	called, missing, early, doubled int
	p50, p99                        float64
	mb                              map[string]float64
}

func (b *onServers) soakRow(ctx context.Context, s soaking, before []soakRow) (r soakRow, err error) {
	now := time.Now()
	t, err := b.api().tally(ctx, b.target, true)
	if err != nil {
		return r, err
	}
	r = soakRow{
		at: now.Sub(s.from), called: t.Count, missing: max(s.due(now.Add(-soakLate))-t.Count, 0), early: t.Early, doubled: t.Doubled, mb: map[string]float64{},
	}
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
			r.mb[name+", resident"] += float64(bytes) / 1e6
		}
	}
	delete(r.mb, "sink, resident") // it remembers every call
	info, err := b.redisInfo(ctx)
	if err != nil {
		return r, err
	}
	g, err := b.now(ctx)
	if err != nil {
		return r, err
	}
	cold, err := b.coldBytes(ctx, "")
	r.mb["Redis, of keys"], r.mb["Kafka, disk"], r.mb["Cassandra, disk"] = info["used_memory"]/1e6, g.kafka/1e6, cold/1e6
	return r, err
}

func (r *soakRow) print(head bool) {
	names := slices.Sorted(maps.Keys(r.mb))
	if head {
		fmt.Printf("| after | calls | missing | early | doubled | p50, ms | p99 | %s |\n|%s\n", strings.Join(names, ", MB | ")+", MB", strings.Repeat("---|", 7+len(names)))
	}
	fmt.Printf("| %s | %d | %d | %d | %d | %.1f | %.1f |", r.at.Round(time.Second), r.called, r.missing, r.early, r.doubled, r.p50, r.p99)
	for _, name := range names {
		fmt.Printf(" %.0f |", r.mb[name])
	}
	fmt.Println()
}

// told prints what has not levelled off: what was more in the last quarter than in the one before it. It fails if there is any, or if calls
// were not as they should be.
func told(rows []soakRow) (err error) {
	most := func(rows []soakRow, name string) (mb float64) {
		for _, r := range rows {
			mb = max(mb, r.mb[name])
		}
		return mb
	}
	last := rows[len(rows)-1]
	quarter := len(rows) / 4
	for _, name := range slices.Sorted(maps.Keys(last.mb)) {
		before, now := most(rows[len(rows)-2*quarter:len(rows)-quarter], name), most(rows[len(rows)-quarter:], name)
		if now > before*(1+soakGrowth)+soakSlack {
			err = errors.Join(err, fmt.Errorf("%s: %.0f MB at most in the last quarter, %.0f in the one before", name, now, before))
		}
	}
	if last.missing > 0 || last.early > 0 || last.doubled > 0 {
		err = errors.Join(err, fmt.Errorf("%d calls are missing, %d were early, %d doubled", last.missing, last.early, last.doubled))
	}
	if err == nil {
		fmt.Println("\neverything has levelled off")
	}
	return err
}
