package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

const (
	// endedName and keptName name the keys of packed outcomes, and of what was forgotten of them before its time.
	endedName, keptName = "ended:", "kept"
	// The first endedFirst outcomes of a minute of a partition lie in one hash, if [Options] say so, the others in one of endedShares: each
	// shall have enough of them that its name is no weight, and few enough that Redis keeps it in one piece of memory, as it does with 128
	// fields of up to 64 bytes.
	endedFirst, endedShares = 128, 16
	// outcomeTTL is how long an outcome is kept, packed, and detailTTL how long all of it. Both exceed the promise by the difference
	// that clocks may have.
	outcomeTTL = attempts.Retention + 2*clock.MaxDifference
	detailTTL  = attempts.DetailFor + 2*clock.MaxDifference
	// recordTTL is how long a record without an outcome is kept after it was last touched, stopTTL a stop record. Both outlive the
	// retention of the fires' topic.
	recordTTL = 8 * 24 * time.Hour
	stopTTL   = 8 * 24 * time.Hour
)

// Records is leases, outcomes and stop records on Redis.
type Records struct {
	*Tier
	gather *gatherer
}

var _ attempts.Records = (*Records)(nil)

// NewRecords returns the records of a tier.
func NewRecords(t *Tier) *Records { return &Records{Tier: t, gather: newGatherer(t)} }

// recordKey is in the same partition as its job's stop record: the part of an execution id before the hyphen is its job's.
func (r *Records) recordKey(k attempts.Key) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(k.ExecutionID, job.ExecutionPrefix), "-")
	return r.ofJob(job.JobPrefix+id, "exec:"+k.ExecutionID+":"+strconv.Itoa(k.Attempt))
}

// digest returns what identifies the attempt among packed outcomes.
func digest(k attempts.Key) string {
	d := attempts.Digest(k)
	return string(d[:])
}

// endedKeys returns the keys of the hashes in which the outcome may be packed, with others of its minute: of the first of them, and of the
// share of the others.
func (r *Records) endedKeys(k attempts.Key) (first, share string) {
	id, _, _ := strings.Cut(strings.TrimPrefix(k.ExecutionID, job.ExecutionPrefix), "-")
	first = r.ofJob(job.JobPrefix+id, endedName+minuteOf(k.ExecutionID))
	return first, first + ":" + strconv.Itoa(int(digest(k)[0])%endedShares)
}

// minuteOf names the nominal minute of an execution. The executions of an operation have one nominal instant, and may be very many: of a
// backfill it is the minute of the occurrence, and of a replay one of many parts.
func minuteOf(executionID string) string {
	ref, err := job.ParseExecutionID(executionID)
	switch {
	case err != nil:
		return "0"
	case ref.Trigger == job.TriggerBackfill:
		return strconv.FormatInt(job.Minute(ref.FillsIn), 10)
	case ref.Trigger == job.TriggerReplay:
		return strconv.FormatInt(job.Minute(ref.NominalAt), 10) + "." + ref.Request[len(ref.Request)-2:]
	}
	return strconv.FormatInt(job.Minute(ref.NominalAt), 10)
}

// keysOf returns the keys of an attempt: its record, and where its outcome may be packed.
func (r *Records) keysOf(k attempts.Key) []string {
	first, share := r.endedKeys(k)
	return []string{r.recordKey(k), first, share}
}

func (r *Records) stopKey(jobID string) string { return r.ofJob(jobID, "stop:"+jobID) }

func (r *Records) incarnationKey(jobID string) string { return r.ofJob(jobID, "incarnation") }

// Memory implements attempts.Records.
func (r *Records) Memory(ctx context.Context, jobID string) (attempts.Memory, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	m := attempts.Memory{KeptSince: time.Now().Add(-attempts.Retention)}
	values, err := r.client.MGet(ctx, r.incarnationKey(jobID), r.ofJob(jobID, keptName)).Result()
	if err == nil && values[0] == nil {
		values[0], err = r.run(ctx, incarnationScript, []string{r.incarnationKey(jobID)}).Text()
	}
	if err != nil {
		return m, fmt.Errorf("redis: memory: %w", err)
	}
	m.Incarnation = fmt.Sprint(values[0])
	if values[1] != nil {
		ms, err := strconv.ParseInt(fmt.Sprint(values[1]), 10, 64)
		if err != nil {
			return m, fmt.Errorf("redis: memory: %w", err)
		}
		m.KeptSince = job.Later(m.KeptSince, time.UnixMilli(ms))
	}
	return m, nil
}

// A record is a hash for one attempt: e exists, h holder, d definition, c and s the token's counter and start, l when the lease
// expires, r released, n running, t takeovers, o outcome, w and u the hand-out and when its task was taken. Starts of tokens are compared as text, because they exceed 2^53. The hash
// expires soon after its attempt; what is kept of the outcome is then in a hash for many attempts, KEYS[2] or KEYS[3], under the attempt's
// digest.
const recordLua = `
local key = KEYS[1]
local f = redis.call('HMGET', key, 'e', 'o', 'r', 'l', 'n', 'c', 's')
local exists, outcome, released, lapses, running = f[1] == '1', f[2], f[3] == '1', tonumber(f[4] or 0), f[5] == '1'
local there = f[6] ~= false
local function mine(c, s) return f[6] == c and f[7] == s end
local function alive(now) return exists and not outcome and not released and tonumber(now) < lapses end
local packed = false
local function look(digest)
  if not there then packed = redis.call('HGET', KEYS[2], digest) or redis.call('HGET', KEYS[3], digest) end
  outcome = outcome or packed
end
local function store(text, detail_ms, digest, pack, ms, first)
  redis.call('HSET', key, 'e', '1', 'o', text)
  redis.call('PEXPIRE', key, detail_ms)
  local into = KEYS[3]
  if first ~= '0' and redis.call('HLEN', KEYS[2]) < tonumber(first) then into = KEYS[2] end
  redis.call('HSET', into, digest, pack)
  redis.call('PEXPIRE', into, ms)
end
local function answer(n)
  if packed then return {n, {'p', packed}} end
  return {n, redis.call('HGETALL', key)}
end
`

var acquireScript = newScript(recordLua + `
look(ARGV[7])
if exists and not outcome and not released and f[7] == ARGV[3] and redis.call('HGET', key, 'h') == ARGV[1] then
  local given = redis.call('HMGET', key, 'w', 'u')
  if ARGV[8] ~= '' and given[1] ~= ARGV[8] then
    if given[1] then
      if tonumber(ARGV[9]) < tonumber(given[2]) + tonumber(ARGV[10]) then return answer(0) end
      redis.call('HINCRBY', key, 'c', 1)
    end
    redis.call('HSET', key, 'w', ARGV[8], 'u', ARGV[9])
  end
  if tonumber(ARGV[5]) > lapses then redis.call('HSET', key, 'l', ARGV[5]) end
  return answer(1)
end
if outcome or alive(ARGV[4]) then return answer(0) end
if exists and not released then redis.call('HINCRBY', key, 't', 1) end
redis.call('HSET', key, 'e', '1', 'r', '0', 'h', ARGV[1], 's', ARGV[3], 'l', ARGV[5])
if ARGV[8] ~= '' then redis.call('HSET', key, 'w', ARGV[8], 'u', ARGV[9]) elseif there then redis.call('HDEL', key, 'w', 'u') end
if not running then redis.call('HSET', key, 'd', ARGV[2]) end
redis.call('HINCRBY', key, 'c', 1)
redis.call('PEXPIRE', key, ARGV[6])
return answer(1)`)

// Acquire implements attempts.Records.
func (r *Records) Acquire(
	ctx context.Context, k attempts.Key, h attempts.Holder, now, lapsesAt time.Time,
) (attempts.Record, bool, error) {
	rec, ok, err := answerOf(r.gather.run(ctx, acquireScript, r.keysOf(k), h.Name, h.DefinitionID, h.Start,
		now.UnixMilli(), lapsesAt.UnixMilli(), recordTTL.Milliseconds(), digest(k), h.For, h.ForSince.UnixMilli(), attempts.AloneFor.Milliseconds()))
	if err != nil {
		return rec, ok, fmt.Errorf("redis: acquire: %w", err)
	}
	return rec, ok, nil
}

// It returns the number of the invocation, or nothing if it changed nothing. Most attempts begin here, so it reads as little as it can.
var beginScript = newScript(incarnationLua + `
if redis.call('EXISTS', KEYS[1], KEYS[4]) ~= 0 or redis.call('HEXISTS', KEYS[2], ARGV[6]) + redis.call('HEXISTS', KEYS[3], ARGV[6]) > 0 then
  return false
end
local now = redis.call('MGET', KEYS[5], KEYS[7])
local kept = now[2]
if kept and tonumber(kept) >= tonumber(ARGV[8]) or now[1] ~= ARGV[7] or not reigns(ARGV[7]) then return false end
redis.call('HSET', KEYS[1], 'e', '1', 'r', '0', 'h', ARGV[1], 'd', ARGV[2], 'c', '1', 's', ARGV[3], 'l', ARGV[4], 'n', '1')
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return redis.call('INCR', KEYS[6])`)

// Begin implements attempts.Records.
func (r *Records) Begin(
	ctx context.Context, k attempts.Key, h attempts.Holder, lapsesAt time.Time, c attempts.Check, keptSince time.Time,
) (fence job.Fence, ok bool, err error) {
	id := c.Entry.JobID
	keys := append(r.keysOf(k), r.stopKey(id), r.incarnationKey(id), r.ofJob(id, "started"), r.ofJob(id, keptName))
	counter, err := r.gather.run(ctx, beginScript, keys, h.Name, c.Entry.DefinitionID, h.Start, lapsesAt.UnixMilli(), recordTTL.Milliseconds(), digest(k),
		c.Incarnation, keptSince.UnixMilli()).Int64()
	switch {
	case errors.Is(err, redis.Nil):
		return fence, false, nil
	case err != nil:
		return fence, false, fmt.Errorf("redis: begin: %w", err)
	}
	return job.Fence{Epoch: attempts.EpochOf(c.Incarnation), Counter: counter, Start: h.Start}, true, nil
}

// It returns the number of the invocation, a word, or the current stop record if its version is not the check's.
var startScript = newScript(recordLua + incarnationLua + `
if incarnation(KEYS[3]) ~= ARGV[3] then return 'incarnation' end
if not there or not mine(ARGV[1], ARGV[2]) or released or outcome then return 'fenced' end
local stop = redis.call('HMGET', KEYS[2], 'v', 'b')
if (stop[1] or '0') ~= ARGV[4] then return {stop[2] or ''} end
redis.call('HSET', key, 'n', '1', 'd', ARGV[5])
redis.call('PEXPIRE', key, ARGV[6])
return redis.call('INCR', KEYS[4])`)

// Start implements attempts.Records.
func (r *Records) Start(ctx context.Context, k attempts.Key, t job.Token, c attempts.Check) (fence job.Fence, stop *job.State, err error) {
	jobID := c.Entry.JobID
	keys := []string{r.recordKey(k), r.stopKey(jobID), r.incarnationKey(jobID), r.ofJob(jobID, "started")}
	answer, err := r.gather.run(ctx, startScript, keys, t.Counter, t.Start, c.Incarnation, c.StopVersion, c.Entry.DefinitionID,
		recordTTL.Milliseconds()).Result()
	counter, began := answer.(int64)
	standing, other := answer.([]any)
	switch {
	case err != nil:
	case began:
		return job.Fence{Epoch: attempts.EpochOf(c.Incarnation), Counter: counter, Start: t.Start}, nil, nil
	case other:
		stop = &job.State{}
		if text := fmt.Sprint(standing...); text != "" {
			err = json.Unmarshal([]byte(text), stop)
		}
	case answer == "incarnation":
		err = attempts.ErrIncarnation
	case answer == "fenced":
		err = attempts.ErrFenced
	default:
		err = fmt.Errorf("unexpected answer %v", answer)
	}
	if err != nil {
		return job.Fence{}, nil, fmt.Errorf("redis: start: %w", err)
	}
	return job.Fence{}, stop, nil
}

var renewScript = newScript(recordLua + `
look(ARGV[9])
if packed then
  return 0
elseif not there then
  redis.call('HSET', key, 'e', '1', 'h', ARGV[1], 'd', ARGV[2], 'c', ARGV[3], 's', ARGV[4], 'n', ARGV[6])
elseif not mine(ARGV[3], ARGV[4]) or outcome then
  return 0
elseif ARGV[7] == '1' and not running then
  redis.call('HSET', key, 'd', ARGV[2], 'n', '1')
end
if tonumber(ARGV[5]) > lapses then redis.call('HSET', key, 'l', ARGV[5]) end
redis.call('PEXPIRE', key, ARGV[8])
return 1`)

// Renew implements attempts.Records. Each lease is renewed by its own script, so other calls come in between.
func (r *Records) Renew(ctx context.Context, leases []attempts.Lease, lapsesAt time.Time) error {
	if len(leases) == 0 {
		return nil
	}
	calls := make([]call, len(leases))
	for i, l := range leases {
		calls[i] = call{renewScript, r.keysOf(l.Key), []any{
			l.Holder.Name, l.Holder.DefinitionID, l.Token.Counter, l.Token.Start, lapsesAt.UnixMilli(), flag(l.MayHaveBegun || l.Begun), flag(l.Begun),
			recordTTL.Milliseconds(), digest(l.Key),
		}}
	}
	if _, err := r.runAll(ctx, calls); err != nil {
		return fmt.Errorf("redis: renew: %w", err)
	}
	return nil
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// A look-up finds nothing for an attempt that was released and never ran.
var releaseScript = newScript(recordLua + `
if not there or not mine(ARGV[1], ARGV[2]) or outcome or released then return 0 end
redis.call('HSET', key, 'r', '1')
if ARGV[3] == '1' and running then
  redis.call('HSET', key, 'd', ARGV[4])
else
  redis.call('HSET', key, 'e', '0', 'n', '0')
end
return 1`)

// Release implements attempts.Records.
func (r *Records) Release(ctx context.Context, k attempts.Key, t job.Token, called bool, definitionID string) error {
	if err := r.gather.run(ctx, releaseScript, []string{r.recordKey(k)}, t.Counter, t.Start, flag(called), definitionID).Err(); err != nil {
		return fmt.Errorf("redis: release: %w", err)
	}
	return nil
}

var finishScript = newScript(recordLua + `
look(ARGV[6])
if outcome or not (not there or mine(ARGV[1], ARGV[2]) or not alive(ARGV[3])) then return answer(0) end
if not there then redis.call('HSET', key, 'c', ARGV[1], 's', ARGV[2]) end
store(ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9])
return 1`)

// Finish implements attempts.Records.
func (r *Records) Finish(ctx context.Context, ends []attempts.Completion, now time.Time) ([]attempts.Completed, error) {
	if len(ends) == 0 {
		return nil, nil
	}
	calls := make([]call, len(ends))
	for i, e := range ends {
		args := append([]any{e.Token.Counter, e.Token.Start, now.UnixMilli()}, r.stored(e.Key, e.Token, e.Outcome)...)
		calls[i] = call{finishScript, r.keysOf(e.Key), args}
	}
	answers, err := r.runAll(ctx, calls)
	if err != nil {
		return nil, fmt.Errorf("redis: finish: %w", err)
	}
	ended := make([]attempts.Completed, len(ends))
	for i, a := range answers {
		if ended[i].Stored = a.Val() == int64(1); ended[i].Stored {
			continue
		}
		if ended[i].Record, _, err = answerOf(a); err != nil {
			return nil, fmt.Errorf("redis: finish: %w", err)
		}
	}
	return ended, nil
}

var refuseScript = newScript(recordLua + `
look(ARGV[3])
if outcome or running or (exists and not released) then return answer(0) end
if not there then redis.call('HSET', key, 'c', 0, 's', 0) end
store(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6])
return answer(1)`)

// stored returns the arguments by which a script stores an outcome.
func (r *Records) stored(k attempts.Key, t job.Token, o *job.Outcome) []any {
	first := 0
	if r.o.OutcomesTogether {
		first = endedFirst
	}
	return []any{wire.MarshalOutcome(o), detailTTL.Milliseconds(), digest(k), attempts.Pack(t, o), outcomeTTL.Milliseconds(), first}
}

// Refuse implements attempts.Records.
func (r *Records) Refuse(
	ctx context.Context, k attempts.Key, o job.Outcome, _ time.Time,
) (attempts.Record, bool, error) {
	rec, ok, err := answerOf(r.gather.run(ctx, refuseScript, r.keysOf(k), r.stored(k, job.Token{}, &o)...))
	if err != nil {
		return rec, ok, fmt.Errorf("redis: refuse: %w", err)
	}
	return rec, ok, nil
}

// Lookup implements attempts.Records.
func (r *Records) Lookup(ctx context.Context, keys []attempts.Key) ([]attempts.Record, error) {
	records := make([]attempts.Record, len(keys))
	if len(keys) == 0 {
		return records, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	pipe := r.client.Pipeline()
	whole, packed, shared := make([]*redis.MapStringStringCmd, len(keys)), make([]*redis.SliceCmd, len(keys)), make([]*redis.SliceCmd, len(keys))
	for i, k := range keys {
		first, share := r.endedKeys(k) // before the record: that read finds an attempt that ends in between
		packed[i], shared[i] = pipe.HMGet(ctx, first, digest(k)), pipe.HMGet(ctx, share, digest(k))
		whole[i] = pipe.HGetAll(ctx, r.recordKey(k))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("redis: look up: %w", err)
	}
	for i := range keys {
		fields := whole[i].Val()
		for _, hash := range []*redis.SliceCmd{packed[i], shared[i]} {
			if text, ok := hash.Val()[0].(string); ok && len(fields) == 0 {
				fields = map[string]string{"p": text}
			}
		}
		rec, err := recordOf(fields)
		if err != nil {
			return nil, fmt.Errorf("redis: look up: %w", err)
		}
		records[i] = rec
	}
	return records, nil
}

// answerOf decodes the reply of a script that may change a record: whether it did, and the record that stands.
func answerOf(c *redis.Cmd) (attempts.Record, bool, error) {
	answer, err := c.Slice()
	if err != nil {
		return attempts.Record{}, false, err
	}
	fields := map[string]string{}
	flat, _ := answer[1].([]any)
	for i := 0; i+1 < len(flat); i += 2 {
		fields[fmt.Sprint(flat[i])] = fmt.Sprint(flat[i+1])
	}
	rec, err := recordOf(fields)
	return rec, answer[0] == int64(1), err
}

func recordOf(f map[string]string) (rec attempts.Record, err error) {
	number := func(name string) int64 {
		n, failed := strconv.ParseInt(f[name], 10, 64)
		if f[name] != "" && failed != nil {
			err = errors.Join(err, fmt.Errorf("field %s: %w", strings.ToUpper(name), failed))
		}
		return n
	}
	rec = attempts.Record{
		Exists: f["e"] == "1", Holder: f["h"], DefinitionID: f["d"], Token: job.Token{Counter: number("c"), Start: number("s")},
		Released: f["r"] == "1", Running: f["n"] == "1", Takeovers: int(number("t")), For: f["w"],
	}
	if ms := number("u"); ms != 0 {
		rec.ForSince = time.UnixMilli(ms).UTC()
	}
	if text, ok := f["p"]; ok {
		o, token, failed := attempts.Unpack(text)
		return attempts.Record{Exists: true, DefinitionID: o.DefinitionID, Token: token, Outcome: &o}, failed
	}
	if ms := number("l"); ms != 0 {
		rec.LapsesAt = time.UnixMilli(ms).UTC()
	}
	if text, ok := f["o"]; ok {
		o, failed := wire.UnmarshalOutcome([]byte(text))
		rec.Outcome, err = &o, errors.Join(err, failed)
	}
	return rec, err
}
