package bucketloader

import (
	"context"
	"sync"

	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/bulk"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/forecast"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/schedules"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/tell"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/watch"
)

// audit audits the schedules, carries operations out, forecasts, watches deadlines and tells owners, and returns a function that ends that and waits
// for it.
func (s *Service) audit(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	d := &s.deps
	a := &schedules.Audit{
		Config: s.cfg.Schedules, Jobs: d.Jobs, Pending: d.Pending, History: d.History, Settings: d.Settings, Hot: d.Hot, Log: d.Log,
		Partitions: s.cfg.Partitions, Clock: d.Clock, Logger: d.Logger, Metrics: s.metrics.schedules, Mine: s.audits.Load,
	}
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	b := &bulk.Runner{
		Config: bulk.DefaultConfig(), Store: operations.Store{Settings: d.Settings, Clock: d.Clock}, Jobs: d.Jobs, Pending: d.Pending, History: d.History,
		Hot: d.Hot, Stops: d.Records, Log: d.Log, Partitions: s.cfg.Partitions, Clock: d.Clock, Entropy: d.Entropy, Logger: d.Logger,
		Metrics: s.metrics.operations, Mine: s.audits.Load,
	}
	running.Go(func() { b.Run(ctx) })
	f := &forecast.Forecaster{
		Config: s.cfg.Forecast, Jobs: d.Jobs, Pending: d.Pending, Lists: d.Settings, Partitions: s.cfg.Partitions, Clock: d.Clock,
		Logger: d.Logger, Metrics: s.metrics.forecast, Mine: s.audits.Load,
	}
	running.Go(func() { f.Run(ctx) })
	w := &watch.Watchdog{
		Config: watch.DefaultConfig(), Jobs: d.Jobs, Pending: d.Pending, History: d.History, Settings: d.Settings, Hot: d.Hot, Records: d.Records,
		Partitions: s.cfg.Partitions, Clock: d.Clock, Logger: d.Logger, Metrics: s.metrics.watch,
	}
	running.Go(func() { w.Run(ctx) })
	targets := d.Targets
	if targets == nil {
		own := tell.Transport(s.cfg.AllowPrivateTargets)
		context.AfterFunc(ctx, own.CloseIdleConnections)
		targets = own
	}
	t := &tell.Teller{
		Config: tell.DefaultConfig(), Jobs: d.Jobs, History: d.History, Settings: d.Settings, Targets: targets, Clock: d.Clock, Logger: d.Logger,
		Metrics: s.metrics.tell,
	}
	running.Go(func() { t.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}
