package process

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/minutehand/minutehand/libs/bubble"
)

type lacksPartitions struct{}

func (lacksPartitions) Run(context.Context) error { return nil }
func (lacksPartitions) Missing() []string         { return []string{"partitions"} }

func TestProcessIsNotReadyWhileItLacksAServerOrItsServiceSomething(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &Process{}
		p.Needs("cassandra", func(context.Context) error { return nil })
		p.Needs("kafka", func(context.Context) error { return errors.New("away") })
		p.Needs("redis", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		ctx, stop := context.WithCancel(t.Context())
		if got := p.silent(ctx); !slices.Equal(got, []string{"kafka", "redis"}) {
			t.Errorf("silent are %v", got)
		}
		p.needs = p.needs[:1]
		if got := p.missing(ctx, lacksPartitions{}); !slices.Equal(got, []string{"partitions"}) {
			t.Errorf("missing is %v", got)
		}
		stop()
		if got := p.missing(ctx, lacksPartitions{}); !slices.Equal(got, []string{"it is stopping"}) {
			t.Errorf("missing is %v at a stop", got)
		}
	})
}
