package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// The script always writes, so that the caller can wait for the replication of a standing record as well. It returns how many
// replicas are in step (one that is still fetching everything may take minutes), and for how many milliseconds another server may
// go on: one that this one replaced, or one that replaced this one, together with its replica.
var stopScript = newScript(incarnationLua + `
local standing = redis.call('HGET', KEYS[1], 'v')
if not standing or tonumber(standing) < tonumber(ARGV[1]) then redis.call('HSET', KEYS[1], 'v', ARGV[1], 'b', ARGV[2]) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local name, most, left = incarnation(KEYS[2]), tonumber(ARGV[4]), 0
if string.sub(name, 56) == 'p' then
  local time = redis.call('TIME')
  left = most - ((time[1] * 1000000 + time[2]) - tonumber(string.sub(name, 1, 14), 16)) / 1000
end
local info = redis.call('INFO', 'replication')
local replicas = select(2, string.gsub(info, 'state=online', ''))
if replicas == 0 and string.find(info, 'repl_backlog_active:1') then left = most end
return {replicas, math.ceil(math.max(0, math.min(left, most)))}`)

// replicaWait is how long a replica may take to receive a stop record.
const replicaWait = time.Second

var errReplica = errors.New("no replica has it yet")

// SetStop implements attempts.Records. Where there are replicas, one of them has the record before it counts as set. Only the
// connection that wrote can ask for that, which is why Watch is used here.
func (r *Records) SetStop(ctx context.Context, jobID string, s job.State) (holdsIn time.Duration, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	text, err := json.Marshal(s)
	if err == nil {
		err = r.client.Watch(ctx, func(tx *redis.Tx) error {
			keys := []string{r.stopKey(jobID), r.incarnationKey(jobID)}
			most := (attempts.ReplacedFor + clock.MaxDifference).Milliseconds()
			answer, err := stopScript.Run(ctx, tx, keys, s.Version, text, stopTTL.Milliseconds(), most).Int64Slice()
			if err != nil {
				return err
			}
			holdsIn = time.Duration(answer[1]) * time.Millisecond
			if replicas := answer[0]; replicas == 0 {
				return nil
			}
			having, err := tx.Wait(ctx, 1, replicaWait).Result()
			if err == nil && having == 0 {
				err = errReplica
			}
			return err
		}, r.stopKey(jobID))
	}
	if err != nil {
		return 0, fmt.Errorf("redis: stop record: %w", err)
	}
	return holdsIn, nil
}

// StopsOf implements attempts.Records.
func (r *Records) StopsOf(ctx context.Context, jobIDs []string) (map[string]job.State, error) {
	states := map[string]job.State{}
	if len(jobIDs) == 0 {
		return states, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	pipe := r.client.Pipeline()
	answers := make([]*redis.StringCmd, len(jobIDs))
	for i, id := range jobIDs {
		answers[i] = pipe.HGet(ctx, r.stopKey(id), "b")
	}
	_, _ = pipe.Exec(ctx) // it returns only the first error, and a missing record counts as one
	for i, a := range answers {
		if errors.Is(a.Err(), redis.Nil) {
			continue
		}
		if a.Err() != nil {
			return nil, fmt.Errorf("redis: stop records: %w", a.Err())
		}
		var s job.State
		if err := json.Unmarshal([]byte(a.Val()), &s); err != nil {
			return nil, fmt.Errorf("redis: stop record: %w", err)
		}
		states[jobIDs[i]] = s
	}
	return states, nil
}
