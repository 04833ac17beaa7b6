package embedded

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/capacity"
)

// Board is the board of one process.
type Board struct {
	mu      sync.Mutex
	reports map[string]posted
}

type posted struct {
	report capacity.Report
	at     time.Time
}

var _ capacity.Board = (*Board)(nil)

// NewBoard returns an empty board.
func NewBoard() *Board { return &Board{reports: map[string]posted{}} }

// Post implements capacity.Board.
func (b *Board) Post(_ context.Context, r capacity.Report) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(r.Lanes) == 0 {
		delete(b.reports, r.Executor)
		return nil
	}
	r.Lanes = slices.Clone(r.Lanes)
	b.reports[r.Executor] = posted{r, time.Now()}
	return nil
}

// Read implements capacity.Board.
func (b *Board) Read(context.Context) ([]capacity.Report, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var reports []capacity.Report
	for _, name := range slices.Sorted(maps.Keys(b.reports)) {
		p := b.reports[name]
		if p.report.Age = time.Since(p.at); p.report.Age > capacity.Fresh {
			delete(b.reports, name)
			continue
		}
		reports = append(reports, p.report)
	}
	return reports, nil
}
