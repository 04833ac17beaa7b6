//go:build servers

package redis_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

// server returns the server whose settings tests may change; they are restored in the end.
func server(t *testing.T) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: servertest.Address(t, "REDIS")})
	t.Cleanup(func() {
		// t.Context has ended.
		ctx := context.WithoutCancel(t.Context())
		err := errors.Join(c.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err(), c.ConfigSet(ctx, "maxmemory", "0").Err(), c.Close())
		if err != nil {
			t.Error(err)
		}
	})
	return c
}

// ended stores outcomes of attempts of many jobs that were due within five minutes of an instant, each with a response of answer
// bytes.
func ended(t *testing.T, r *redis.Records, from time.Time, n, answer int) []attempts.Key {
	t.Helper()
	now := job.Instant(time.Now())
	keys := make([]attempts.Key, n)
	batch := make([]attempts.Completion, 0, attempts.MaxFinish)
	body := []byte(strings.Repeat("x", answer))
	for i := range keys {
		due := job.Instant(from).Add(time.Duration(i%5) * time.Minute)
		keys[i] = attempts.Key{ExecutionID: job.ScheduleExecutionID(job.JobPrefix+ulid.Make().String(), due), Attempt: 1}
		token := job.Token{Counter: 1, Start: 1_000_000 + int64(i)}
		batch = append(batch, attempts.Completion{Key: keys[i], Token: token, Outcome: &job.Outcome{
			Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired, StatusCode: 200, ResponseBody: body, DefinitionID: job.DefinitionPrefix + ulid.Make().String(),
			Fence:    job.Fence{Epoch: now.UnixMicro(), Counter: int64(i), Start: token.Start},
			Timeline: job.Timeline{Taken: now, Published: now, Consumed: now, Invoked: now, Completed: now},
		}})
		if len(batch) < cap(batch) && i+1 < n {
			continue
		}
		if _, err := r.Finish(t.Context(), batch, now); err != nil {
			t.Fatal(err)
		}
		batch = batch[:0]
	}
	return keys
}

// forgetDetails makes the server do now what it does DetailFor later.
func forgetDetails(t *testing.T, c *goredis.Client, prefix string) {
	t.Helper()
	all := c.Scan(t.Context(), 0, prefix+"{p*}:exec:*", 10_000).Iterator()
	pipe := c.Pipeline()
	for all.Next(t.Context()) {
		pipe.Unlink(t.Context(), all.Val())
	}
	if _, err := pipe.Exec(t.Context()); err != nil || all.Err() != nil {
		t.Fatal(err, all.Err())
	}
}

func used(t *testing.T, c *goredis.Client) int64 {
	t.Helper()
	info, err := c.Info(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the server does not say how much memory it uses")
	return 0
}

// taken returns what the keys of a prefix take: each as Redis says, with its places in the tables of keys and of TTLs. What the server uses in
// all depends on the keys of others, too, which expire meanwhile.
func taken(t *testing.T, c *goredis.Client, prefix string) (bytes int64) {
	t.Helper()
	const places = 2*8 + 24 // a bucket in each table, and the TTL's entry; that of the key is in what Redis says
	all := c.Scan(t.Context(), 0, prefix+"*", 10_000).Iterator()
	pipe := c.Pipeline()
	for all.Next(t.Context()) {
		pipe.MemoryUsage(t.Context(), all.Val(), 0)
	}
	answers, err := pipe.Exec(t.Context())
	if err != nil || all.Err() != nil {
		t.Fatal(err, all.Err())
	}
	for _, a := range answers {
		bytes += a.(*goredis.IntCmd).Val() + places
	}
	return bytes
}

// In manyPartitions there is little that shares a key.
const manyPartitions = 1024

func TestOutcomeTakesAtMost120Bytes(t *testing.T) {
	const outcomes = 40_000 // of five minutes
	for name, o := range map[string]redis.Options{"few partitions": {}, "many": {Partitions: manyPartitions, OutcomesTogether: true}} {
		t.Run(name, func(t *testing.T) {
			c, tier := server(t), open(t, o)
			r := redis.NewRecords(tier)
			ended(t, r, time.Now(), outcomes, 4096)
			whole := taken(t, c, tier.Prefix())
			forgetDetails(t, c, tier.Prefix())
			packed := taken(t, c, tier.Prefix())
			t.Logf("an outcome takes %d bytes with an answer of 4 KiB, and %d packed", whole/outcomes, packed/outcomes)
			if each := packed / outcomes; each > 120 || each < 40 { // there is less to a digest and what is packed
				t.Errorf("an outcome takes %d bytes", each)
			}
		})
	}
}

func TestClaimTakesAtMost120Bytes(t *testing.T) {
	for _, partitions := range []int{2, manyPartitions} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) { claimTakes(t, partitions) })
	}
}

func claimTakes(t *testing.T, partitions int) {
	const claims = 40_000 // of five minutes
	c, tier := server(t), open(t, redis.Options{Partitions: partitions})
	h := redis.NewHotBuckets(tier)
	defer func() { _ = h.Close() }()
	from := job.Instant(time.Now())
	claim := func(i int) {
		due := from.Add(time.Duration(i%5) * time.Minute)
		id := job.JobPrefix + ulid.Make().String()
		o := coord.Owner{Partition: bucket.Partition(id, partitions), Role: coord.RoleWorker, Epoch: 1}
		if i < 0 {
			o.Partition = -i - 1
			if err := h.SetEpoch(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		want := job.Decision{Fire: true, Next: due.Add(time.Hour), NextOrdinal: 1000, Disposition: job.DispositionFired}
		got, err := h.Claim(t.Context(), o, []hotbucket.Claim{{
			ExecutionID: job.ScheduleExecutionID(id, due), DefinitionID: job.DefinitionPrefix + ulid.Make().String(), Decision: want,
		}})
		if err != nil || len(got) != 1 || got[0] != want {
			t.Fatal(got, err)
		}
	}
	for p := range partitions {
		claim(-p - 1)
	}
	before := taken(t, c, tier.Prefix())
	for i := range claims {
		claim(i)
	}
	each := (taken(t, c, tier.Prefix()) - before) / claims
	t.Logf("a claim takes %d bytes", each)
	if each > 120 || each < 20 {
		t.Error("that is too much, or not the claims")
	}
}

func TestPackedOutcomeEndsItsAttempt(t *testing.T) {
	for _, together := range []bool{false, true} {
		c, tier := server(t), open(t, redis.Options{Partitions: 1, OutcomesTogether: together})
		r := redis.NewRecords(tier)
		keys := ended(t, r, time.Now(), 1000, 10) // 200 of each minute
		forgetDetails(t, c, tier.Prefix())
		want := map[bool]int64{true: 128}[together]
		if n := c.HLen(t.Context(), tier.EndedKeys(keys[0])[0]).Val(); n != want {
			t.Errorf("%d outcomes lie in the first hash of a minute, want %d", n, want)
		}
		// Those that read it may have been told otherwise than those that stored it.
		o := redis.Options{Partitions: 1, OutcomesTogether: !together, Prefix: tier.Prefix()}
		for i, k := range []attempts.Key{keys[0], keys[len(keys)-1]} {
			t.Run(fmt.Sprintf("together: %t, %s", together, []string{"the first", "the last"}[i]), func(t *testing.T) {
				packedOutcomeEnds(t, redis.NewRecords(open(t, o)), k)
			})
		}
	}
}

func packedOutcomeEnds(t *testing.T, r *redis.Records, k attempts.Key) {
	ctx, now := t.Context(), time.Now()
	is := func(what string, rec attempts.Record, ok bool, err error) {
		t.Helper()
		if err != nil || ok || rec.Outcome == nil || rec.Outcome.Kind != job.OutcomeSucceeded || rec.Outcome.StatusCode != 200 || !rec.Exists {
			t.Errorf("%s: %t, %+v, %+v (%v)", what, ok, rec, rec.Outcome, err)
		}
	}
	h := attempts.Holder{Name: "another", DefinitionID: "def_2", Start: 7}
	rec, ok, err := r.Acquire(ctx, k, h, now, now.Add(time.Minute))
	is("a lease", rec, ok, err)
	e := &job.Entry{JobID: job.JobPrefix + strings.TrimPrefix(strings.Split(k.ExecutionID, "-")[0], job.ExecutionPrefix)}
	m, err := r.Memory(ctx, e.JobID)
	if err != nil {
		t.Fatal(err)
	}
	if _, began, err := r.Begin(ctx, k, h, now.Add(time.Minute), attempts.Check{Incarnation: m.Incarnation, Entry: e}, now); began || err != nil {
		t.Errorf("it began again: %t (%v)", began, err)
	}
	rec, ok, err = r.Refuse(ctx, k, job.Outcome{Kind: job.OutcomeCancelled}, now)
	is("a refusal", rec, ok, err)
	token := job.Token{Counter: 1, Start: 7}
	again, err := r.Finish(ctx, []attempts.Completion{{Key: k, Token: token, Outcome: &job.Outcome{Kind: job.OutcomeFailed}}}, now)
	is("another outcome", again[0].Record, again[0].Stored, err)
	if err := r.Renew(ctx, []attempts.Lease{{Key: k, Holder: h, Token: token}}, now.Add(time.Minute)); err != nil {
		t.Error(err)
	}
	if err := r.Release(ctx, k, token, true, "def_2"); err != nil {
		t.Error(err)
	}
	records, err := r.Lookup(ctx, []attempts.Key{k})
	is("a look", records[0], false, err)
}

func TestServerThatRunsFullForgetsTheOldestOutcomesFirstAndTells(t *testing.T) {
	for _, together := range []bool{false, true} {
		t.Run(fmt.Sprintf("together: %t", together), func(t *testing.T) { oldestAreForgotten(t, redis.Options{OutcomesTogether: together}) })
	}
}

func oldestAreForgotten(t *testing.T, o redis.Options) {
	c, tier := server(t), open(t, o)
	ctx, r := t.Context(), redis.NewRecords(tier)
	valve := redis.NewValve(tier, slog.New(slog.DiscardHandler))
	defer valve.Close()
	older, younger := ended(t, r, time.Now().Add(-time.Hour), 5000, 10), ended(t, r, time.Now(), 500, 10)
	forgetDetails(t, c, tier.Prefix())
	// The age of an outcome is the time by which the TTL of its hash has fallen.
	age := func(key string, by time.Duration) {
		if left, err := c.PTTL(ctx, key).Result(); err != nil || c.PExpire(ctx, key, left-by).Err() != nil {
			t.Fatal(err)
		}
	}
	aged := map[string]bool{}
	for _, k := range older {
		for _, key := range tier.EndedKeys(k) {
			if !aged[key] {
				aged[key] = true
				age(key, 30*time.Minute)
			}
		}
	}
	stop := job.State{Version: 1, Status: job.StatusCancelled}
	jobID := job.JobPrefix + strings.TrimPrefix(strings.Split(older[0].ExecutionID, "-")[0], job.ExecutionPrefix)
	if _, err := r.SetStop(ctx, jobID, stop); err != nil {
		t.Fatal(err)
	}
	before, err := r.Memory(ctx, jobID)
	if err != nil {
		t.Fatal(err)
	}
	if err := valve.Look(ctx); err != nil {
		t.Fatal(err)
	}
	if n := there(t, r, older); n != len(older) {
		t.Errorf("%d of %d outcomes are there although there is room", n, len(older))
	}

	if err := c.ConfigSet(ctx, "maxmemory", fmt.Sprint(used(t, c)*100/95)).Err(); err != nil {
		t.Fatal(err)
	}
	if err := valve.Look(ctx); err != nil {
		t.Fatal(err)
	}
	if n := there(t, r, older); n == len(older) {
		t.Error("nothing was forgotten")
	}
	if n := there(t, r, younger); n != len(younger) {
		t.Errorf("of %d outcomes that are younger %d are there", len(younger), n)
	}
	after, err := r.Memory(ctx, jobID)
	if err != nil || !after.KeptSince.After(before.KeptSince) || after.KeptSince.After(time.Now().Add(-25*time.Minute)) || after.Incarnation != before.Incarnation {
		t.Errorf("it was %+v, and is %+v (%v)", before, after, err)
	}
	if stops, err := r.StopsOf(ctx, []string{jobID}); err != nil || stops[jobID].Status != job.StatusCancelled {
		t.Errorf("the stop record is %+v (%v)", stops, err)
	}
}

// there counts the outcomes that are known.
func there(t *testing.T, r *redis.Records, keys []attempts.Key) (n int) {
	t.Helper()
	records, err := r.Lookup(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range records {
		if rec.Outcome != nil {
			n++
		}
	}
	return n
}

// A policy that is set after the services have started evicts all the same.
func TestEvictionIsANewIncarnation(t *testing.T) {
	c, tier := server(t), open(t, redis.Options{})
	ctx, r := t.Context(), redis.NewRecords(tier)
	valve := redis.NewValve(tier, slog.New(slog.DiscardHandler))
	defer valve.Close()
	const jobID = "job_01M7ZJW5E6D77SAJPXRZ65CMZZ"
	incarnation := func() string {
		t.Helper()
		if err := valve.Look(ctx); err != nil {
			t.Fatal(err)
		}
		m, err := r.Memory(ctx, jobID)
		if err != nil {
			t.Fatal(err)
		}
		return m.Incarnation
	}
	incarnation()
	before := incarnation()
	if again := incarnation(); again != before {
		t.Fatalf("it is another without a reason: %q after %q", again, before)
	}
	err := errors.Join(c.ConfigSet(ctx, "maxmemory-policy", "allkeys-random").Err(), c.ConfigSet(ctx, "maxmemory", fmt.Sprint(used(t, c)-100_000)).Err())
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := c.Set(ctx, tier.Prefix()+"filling", strings.Repeat("x", 1000), time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.ConfigSet(ctx, "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if after := incarnation(); after <= before {
		t.Errorf("after an eviction the incarnation is %q, it was %q", after, before)
	}
}
