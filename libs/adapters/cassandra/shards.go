package cassandra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// historyShardsSetting is the name of the setting that says over how many shards the one-shots' history of a minute is spread: all
	// numbers that it had, the present one last, with commas between them. 0 is by week, as all other history; so is no setting.
	historyShardsSetting = "history-shards"
	// maxHistoryShards bounds a number, and maxShardCounts how many there may be.
	maxHistoryShards, maxShardCounts = 4096, 8
	// shardsFor is how long a process uses the numbers that it read: for so long it may not see, after there is another, what others write.
	// They are used for longer where they cannot be read within shardsAgain; then it tries again after as long.
	shardsFor, shardsAgain = 10 * time.Second, time.Second
)

// ErrHistoryShards means: the number of shards cannot be that.
var ErrHistoryShards = errors.New("shards of the history")

// historyShards is what a process knows of the setting.
type historyShards struct {
	mu            sync.Mutex
	counts        []int
	known, asking bool
	goodTo        time.Time
}

// shardCounts returns all numbers of shards that there ever were, the present one last. Once they are known nobody waits for them but who
// asks for them again, and not for long: they are right to write by, and all that was written by them is found.
func (s *History) shardCounts(ctx context.Context) ([]int, error) {
	h := &s.shards
	h.mu.Lock()
	counts, known := h.counts, h.known
	if known && (h.asking || time.Now().Before(h.goodTo)) {
		h.mu.Unlock()
		return counts, nil
	}
	h.asking = true
	h.mu.Unlock()
	began := time.Now()
	within := ctx
	if known {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, shardsAgain)
		defer cancel()
	}
	text, err := NewSettings(s.Store).Setting(within, historyShardsSetting)
	var read []int
	if err == nil {
		read, err = parseShards(text)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asking = false
	switch {
	case err == nil:
		h.counts, h.known, h.goodTo = read, true, began.Add(shardsFor)
	case h.known:
		h.goodTo = time.Now().Add(shardsAgain)
	default:
		return nil, err
	}
	return h.counts, nil
}

func parseShards(text []byte) (counts []int, err error) {
	if len(text) == 0 {
		return nil, nil
	}
	for field := range strings.SplitSeq(string(text), ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 0 || n > maxHistoryShards {
			return nil, fmt.Errorf("cassandra: setting %s is %q: %w", historyShardsSetting, text, ErrHistoryShards)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// present returns the last one of the numbers of shards.
func present(counts []int) int {
	if len(counts) == 0 {
		return 0
	}
	return counts[len(counts)-1]
}

// SpreadHistory sets over how many shards the one-shots' history of a minute is spread from now on; 0 keeps it by week. What was written
// before stays where it lies, and is found there by every process that knows of shards.
func (s *Store) SpreadHistory(ctx context.Context, shards int) error {
	settings := NewSettings(s)
	old, err := settings.Setting(ctx, historyShardsSetting)
	if err != nil {
		return err
	}
	counts, err := parseShards(old)
	if err != nil || present(counts) == shards {
		return err
	}
	counts = append(slices.DeleteFunc(counts, func(n int) bool { return n == shards }), shards)
	if shards < 0 || shards > maxHistoryShards || len(counts) > maxShardCounts {
		return fmt.Errorf("cassandra: %w: want a number of 0 to %d, and at most %d different ones (%s and %d)", ErrHistoryShards,
			maxHistoryShards, maxShardCounts, old, shards)
	}
	texts := make([]string, len(counts))
	for i, n := range counts {
		texts[i] = strconv.Itoa(n)
	}
	return settings.SwapSetting(ctx, historyShardsSetting, old, []byte(strings.Join(texts, ",")))
}
