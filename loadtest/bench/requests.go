package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minutehand/minutehand/services/all-in-one/sizing"
)

// What the API's requests cost on the real servers: a job registered alone and in batches, and read, each with what follows from it, in
// b; and how long a registration takes beside fires and reads.
const (
	createdAlone, createdTogether, read = 20_000, 100_000, 40_000
	// mixedFires a second are beside as many creates and reads as mixedEach, for mixedFor.
	mixedFires, mixedEach = 500, 200
	mixedFor              = time.Minute
	// followed is how long after the last request its change is published, recorded and archived, and how long the idle installation is
	// watched. Buckets are closed minutes later, which is not counted.
	followed = 30 * time.Second
)

// requested is what one kind of request was measured to take.
type requested struct {
	name string
	n    int
	took time.Duration
	cpu  map[string]float64 // seconds, until what follows has been done, less what idles
	late []time.Duration
}

// requests measures them, and prints one table.
func requests(ctx context.Context, partitions int) error {
	target, _, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	before, err := bareCost(ctx, target, ladderBare)
	if err != nil {
		return err
	}
	var all []requested
	var fires step
	err = withInstallation(ctx, target, partitions, func(b *onServers) error {
		b.fleet.Variables = append(b.fleet.Variables, "MINUTEHAND_ARCHIVE_CLOSE_AFTER=10s")
		if err := b.fleet.StartAll(ctx, 1); err != nil {
			return err
		}
		for range warmUps {
			if _, err := b.load(ctx, sizing.Load{FiresPerSecond: highRate, PayloadKB: ladderKB}); err != nil {
				return err
			}
			ids, err := b.createAlone(ctx, createdAlone/4)
			if err == nil {
				err = errors.Join(b.api().registerBatches(ctx, createdTogether/4, jobsAtRest(b.target, ladderKB)), b.readAll(ctx, ids, read/4))
			}
			if err != nil {
				return err
			}
		}
		time.Sleep(followed)
		if all, err = b.requests(ctx); err != nil {
			return err
		}
		fires, err = b.mixed(ctx, &all)
		return err
	})
	if err != nil {
		return err
	}
	after, err := bareCost(ctx, target, ladderBare)
	if err != nil {
		return err
	}
	printRequests(all, fires, samples{before.cpu * 1e6, after.cpu * 1e6})
	return nil
}

// requests measures each kind of request on its own.
func (b *onServers) requests(ctx context.Context) (all []requested, err error) {
	idle, err := b.usage()
	if err != nil {
		return nil, err
	}
	time.Sleep(followed)
	start, err := b.usage()
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, kind := range []struct {
		name    string
		n       int
		request func() error
	}{
		{"a job registered alone, 32 clients", createdAlone, func() (err error) { ids, err = b.createAlone(ctx, createdAlone); return err }},
		{"a job of a batch of 1,000, 8 clients", createdTogether, func() error { return b.api().registerBatches(ctx, createdTogether, jobsAtRest(b.target, ladderKB)) }},
		{"a job read, 32 clients", read, func() error { return b.readAll(ctx, ids, read) }},
	} {
		from, err := b.usage()
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := kind.request(); err != nil {
			return nil, fmt.Errorf("%s: %w", kind.name, err)
		}
		r := requested{name: kind.name, n: kind.n, took: time.Since(began), cpu: map[string]float64{}}
		time.Sleep(followed)
		to, err := b.usage()
		if err != nil {
			return nil, err
		}
		for name, used := range to {
			r.cpu[name] = used - from[name] - (start[name]-idle[name])*time.Since(began).Seconds()/followed.Seconds()
		}
		fmt.Fprintf(os.Stderr, "%s: %d in %s\n", r.name, r.n, r.took)
		all = append(all, r)
	}
	return all, nil
}

// createAlone registers jobs that are due in a year, one in each request, and returns their ids.
func (b *onServers) createAlone(ctx context.Context, n int) ([]string, error) {
	ids := make([]string, n)
	return ids, inParallel(clients, n, func(i int) (err error) {
		ids[i], err = b.createJob(ctx)
		return err
	})
}

func (b *onServers) createJob(ctx context.Context) (id string, err error) {
	answer, err := b.api().post(ctx, "/api/v1/jobs", strings.NewReader(jobsAtRest(b.target, ladderKB)()))
	if err != nil {
		return "", err
	}
	var j struct {
		ID string `json:"job_id"`
	}
	return j.ID, json.Unmarshal(answer, &j)
}

func (b *onServers) readAll(ctx context.Context, ids []string, n int) error {
	return inParallel(clients, n, func(i int) error { return b.readJob(ctx, ids[i%len(ids)]) })
}

func (b *onServers) readJob(ctx context.Context, id string) error {
	_, err := b.api().get(ctx, b.api().api+"/api/v1/jobs/"+id)
	return err
}

// mixed fires, registers and reads at rates beside each other, whatever the answers take, and adds how long these took.
func (b *onServers) mixed(ctx context.Context, all *[]requested) (s step, err error) {
	ids, err := b.createAlone(ctx, 1000)
	if err == nil {
		err = b.api().reset(ctx, b.target)
	}
	if err != nil {
		return s, err
	}
	s = step{name: "beside each other", fires: mixedFires * int(mixedFor.Seconds())}
	from := time.Now().Add(10*time.Second + time.Duration(s.fires)*time.Millisecond)
	if err := b.registerFor(ctx, sizing.Load{FiresPerSecond: mixedFires, PayloadKB: ladderKB}, from, mixedFor); err != nil {
		return s, err
	}
	if time.Now().After(from.Add(-2 * time.Second)) {
		return s, errors.New("registration took longer than planned for")
	}
	var wg sync.WaitGroup
	var failed [3]error
	beside := func(k int, name string, request func() error) *requested {
		r := &requested{name: name}
		wg.Go(func() { r.late, failed[k] = atRate(ctx, from, request) })
		return r
	}
	creates := beside(0, fmt.Sprintf("a job registered alone, %d/s beside %d fires and %d reads a second", mixedEach, mixedFires, mixedEach),
		func() error { _, err := b.createJob(ctx); return err })
	reads := beside(1, "a job read beside these", func() error { return b.readJob(ctx, ids[rand.IntN(len(ids))]) })
	failed[2] = b.watched(ctx, &s, 0, from)
	wg.Wait()
	for _, r := range []*requested{creates, reads} {
		fmt.Fprintf(os.Stderr, "%s: p99 of each %s, ms:%s\n", r.name, spell, p99Of(r.late, int(spell.Seconds())*mixedEach))
	}
	*all = append(*all, *creates, *reads)
	return s, errors.Join(failed[:]...)
}

// spell is the length of time for which a p99 is told apart from those before and after: what a minute has may all be of one moment.
const spell = 5 * time.Second

func p99Of(late []time.Duration, each int) (text string) {
	for part := range slices.Chunk(late, each) {
		part = slices.Sorted(slices.Values(part))
		text += fmt.Sprintf(" %.0f", float64(part[len(part)*99/100].Microseconds())/1000)
	}
	return text
}

// atRate makes mixedEach requests a second for mixedFor, whether or not those before have been answered, and returns how long after its
// moment each was answered.
func atRate(ctx context.Context, from time.Time, request func() error) (late []time.Duration, err error) {
	const step = time.Second / mixedEach
	late = slices.Grow(late, int(mixedFor/step))[:mixedFor/step]
	failed := slices.Grow([]error(nil), len(late))[:len(late)]
	var wg sync.WaitGroup
	for i := range late {
		at := from.Add(time.Duration(i) * step)
		time.Sleep(time.Until(at))
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			failed[i] = request()
			late[i] = time.Since(at)
		})
	}
	wg.Wait()
	return late, errors.Join(ctx.Err(), errors.Join(failed...))
}

func printRequests(all []requested, fires step, b samples) {
	fmt.Printf("%s\nb, the CPU of a bare request and its answer: %s µs, before and after\n\n", shape(), b)
	fmt.Println("| of all processes, without the client's, less what idles | CPU for each, µs | b | a second | p50, ms | p99, ms |\n|---|---|---|---|---|---|")
	for _, r := range all {
		if r.cpu != nil {
			each := sum(r.cpu) / float64(r.n) * 1e6
			fmt.Printf("| %s | %.0f | %.2f | %.0f | | |\n", r.name, each, each/b.median(), float64(r.n)/r.took.Seconds())
			continue
		}
		slices.Sort(r.late)
		ms := func(share int) float64 { return float64(r.late[len(r.late)*share/100].Microseconds()) / 1000 }
		fmt.Printf("| %s | | | %d | %.1f | %.1f |\n", r.name, mixedEach, ms(50), ms(99))
	}
	fmt.Printf("| a fire beside these, late by | | | %d | %.1f | %.1f |\n", mixedFires, fires.late.p50, fires.late.p99)
	fmt.Println("\n| of these, µs | alone | in a batch | read |\n|---|---|---|---|")
	for _, name := range slices.Sorted(maps.Keys(all[0].cpu)) {
		if !counts(name) {
			continue
		}
		row := "| " + name + " |"
		for _, r := range all {
			if r.cpu != nil {
				row += fmt.Sprintf(" %.0f |", r.cpu[name]/float64(r.n)*1e6)
			}
		}
		fmt.Println(row)
	}
}
