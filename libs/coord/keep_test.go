package coord_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/coord"
)

// alone assigns everything to its only member.
type alone struct {
	coord.Coordinator
	joins, members atomic.Int64
}

func (a *alone) Join(ctx context.Context, role coord.Role) (<-chan []coord.Owner, error) {
	sets := make(chan []coord.Owner, 1)
	sets <- []coord.Owner{{Role: role, Partition: 3, Epoch: a.joins.Add(1)}}
	a.members.Add(1)
	context.AfterFunc(ctx, func() {
		a.members.Add(-1)
		close(sets)
	})
	return sets, nil
}

type stores struct {
	hotAway, coldAway atomic.Bool
}

var errAway = errors.New("away")

func (s *stores) askHot(context.Context, int) error {
	if s.hotAway.Load() {
		return errAway
	}
	return nil
}

func (s *stores) askCold(context.Context) error {
	if s.coldAway.Load() {
		return errAway
	}
	return nil
}

// keep keeps the role in a bubble in which work goes on every second, as far as the stores allow.
func keep(t *testing.T, check func(t *testing.T, c *alone, s *stores, owned func() int)) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c, s := &alone{}, &stores{}
		member := &coord.Membership{
			Coord: c, Role: coord.RoleWorker, Logger: slog.New(slog.DiscardHandler), Hot: &coord.Progress{}, Cold: &coord.Progress{},
			AskHot: s.askHot, AskCold: s.askCold,
		}
		sets, err := member.Keep(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var owned atomic.Int64
		go func() {
			for set := range sets {
				owned.Store(int64(len(set)))
			}
			owned.Store(-1)
		}()
		go func() {
			for ctx.Err() == nil {
				if owned.Load() > 0 {
					for p, away := range map[*coord.Progress]*atomic.Bool{member.Hot: &s.hotAway, member.Cold: &s.coldAway} {
						p.Begin(time.Now())
						if !away.Load() {
							p.Done()
						}
					}
				}
				time.Sleep(time.Second)
			}
		}()
		check(t, c, s, func() int { synctest.Wait(); return int(owned.Load()) })
		cancel()
		time.Sleep(2 * time.Second)
		if n := c.members.Load(); n != 0 || owned.Load() != -1 {
			t.Errorf("after the end there are %d members", n)
		}
	})
}

func TestRoleIsGivenUpWhileAStoreIsAway(t *testing.T) {
	for name, away := range map[string]func(s *stores) *atomic.Bool{
		"hot":  func(s *stores) *atomic.Bool { return &s.hotAway },
		"cold": func(s *stores) *atomic.Bool { return &s.coldAway },
	} {
		t.Run(name, func(t *testing.T) {
			keep(t, func(t *testing.T, c *alone, s *stores, owned func() int) {
				time.Sleep(time.Hour)
				if owned() != 1 || c.joins.Load() != 1 {
					t.Fatalf("%d owned after %d joins, nothing was away", owned(), c.joins.Load())
				}
				away(s).Store(true)
				time.Sleep(coord.GiveUpAfter)
				if owned() != 1 {
					t.Error("the role was given up too early")
				}
				time.Sleep(coord.GiveUpAfter / 2)
				if owned() != 0 || c.members.Load() != 0 {
					t.Fatal("the role is kept")
				}
				time.Sleep(time.Hour)
				if c.joins.Load() != 1 {
					t.Error("it joined again although the store is away")
				}
				away(s).Store(false)
				time.Sleep(5 * time.Second)
				if owned() != 1 || c.members.Load() != 1 {
					t.Error("it does not come back")
				}
				time.Sleep(time.Hour)
				if c.joins.Load() != 2 {
					t.Errorf("it joined %d times", c.joins.Load())
				}
			})
		})
	}
}

func TestRoleOutlivesAStoreThatFailsOver(t *testing.T) {
	keep(t, func(t *testing.T, c *alone, s *stores, owned func() int) {
		for range 10 {
			s.hotAway.Store(true)
			time.Sleep(coord.GiveUpAfter - 2*time.Second)
			s.hotAway.Store(false)
			time.Sleep(2 * time.Second)
		}
		if owned() != 1 || c.joins.Load() != 1 {
			t.Errorf("%d joins", c.joins.Load())
		}
	})
}
