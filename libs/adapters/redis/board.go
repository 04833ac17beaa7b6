package redis

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/capacity"
)

// Board is the board of reports on Redis. Redis' own clock determines their ages.
type Board struct{ *Tier }

var _ capacity.Board = Board{}

// NewBoard returns the board of a tier.
func NewBoard(t *Tier) Board { return Board{t} }

// text is a report as stored in Redis, in JSON as short as possible.
type text struct {
	Behind int64      `json:"b,omitempty"`
	Lanes  [][3]int64 `json:"l"`
}

// boardTTL is how long reports are kept once nobody posts or reads any more.
const boardTTL = time.Minute

var postScript = newScript(`
if ARGV[2] == '' then return redis.call('HDEL', KEYS[1], ARGV[1]) end
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d:', now[1] * 1000 + math.floor(now[2] / 1000)) .. ARGV[2])
return redis.call('PEXPIRE', KEYS[1], ARGV[3])`)

// Post implements capacity.Board.
func (b Board) Post(ctx context.Context, r capacity.Report) error {
	value := ""
	if len(r.Lanes) > 0 {
		t := text{Behind: r.Behind.Milliseconds()}
		for _, l := range r.Lanes {
			t.Lanes = append(t.Lanes, [3]int64{int64(l.ID), int64(l.Waiting), int64(l.Window)})
		}
		encoded, err := json.Marshal(t)
		if err != nil {
			return fmt.Errorf("redis: post: %w", err)
		}
		value = string(encoded)
	}
	err := b.run(ctx, postScript, []string{b.key("capacity")}, r.Executor, value, boardTTL.Milliseconds()).Err()
	if err != nil {
		return fmt.Errorf("redis: post: %w", err)
	}
	return nil
}

// A reader removes reports that are no longer fresh, because their executors may be gone.
var boardScript = newScript(`
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local all, fresh = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local at, report = string.match(all[i + 1], '^(%d+):(.*)$')
  local age = math.max(ms - tonumber(at), 0)
  if age > tonumber(ARGV[1]) then
    redis.call('HDEL', KEYS[1], all[i])
  else
    fresh[#fresh + 1] = all[i]
    fresh[#fresh + 1] = string.format('%d', age)
    fresh[#fresh + 1] = report
  end
end
return fresh`)

// Read implements capacity.Board.
func (b Board) Read(ctx context.Context) ([]capacity.Report, error) {
	list, err := b.run(ctx, boardScript, []string{b.key("capacity")}, capacity.Fresh.Milliseconds()).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("redis: read reports: %w", err)
	}
	var reports []capacity.Report
	for i := 0; i+2 < len(list); i += 3 {
		var t text
		age, err := time.ParseDuration(list[i+1] + "ms")
		if err == nil {
			err = json.Unmarshal([]byte(list[i+2]), &t)
		}
		if err != nil {
			return nil, fmt.Errorf("redis: read reports: %w", err)
		}
		r := capacity.Report{Executor: list[i], Behind: time.Duration(t.Behind) * time.Millisecond, Age: age}
		for _, l := range t.Lanes {
			r.Lanes = append(r.Lanes, capacity.Lane{ID: uint32(l[0]), Waiting: int(l[1]), Window: int(l[2])})
		}
		reports = append(reports, r)
	}
	slices.SortFunc(reports, func(a, b capacity.Report) int { return cmp.Compare(a.Executor, b.Executor) })
	return reports, nil
}
