// Package run holds what every loop of every service needs: patience with servers that are away, and a stop that follows the flow
// of work.
package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/minutehand/minutehand/libs/dispatch"
)

// The pauses between tries of Retry, doubling from the first to the last.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 5 * time.Second
	// pollPause is the pause after a failed poll.
	pollPause = time.Second
	// maxTold bounds the reasons that one wait logs.
	maxTold = 5
)

// Retry calls do until it succeeds or ctx ends; then it returns ctx's error. It logs that it waits, again when the reason is another
// one (the first may be a timeout, or a connection that broke before its server said why), and once that the wait is over. what is a
// constant phrase for the log.
func Retry(ctx context.Context, logger *slog.Logger, what string, do func(context.Context) error) error {
	pause := firstPause
	var told []string
	for {
		err := do(ctx)
		if err == nil {
			if told != nil {
				logger.Info("server answers again", "operation", what)
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if reason := withoutNumbers(err.Error()); len(told) < maxTold && !slices.Contains(told, reason) {
			logger.Warn("waiting for a server", "operation", what, "error", err)
			told = append(told, reason)
		}
		if err := Sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, lastPause)
	}
}

// withoutNumbers drops the digits of a reason: many name a port that is another one each time.
func withoutNumbers(reason string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, reason)
}

// Subscribe joins a group of the log, and waits for the log if it is away. The error is ctx's.
func Subscribe(ctx context.Context, logger *slog.Logger, l dispatch.Log, topic, group string) (c dispatch.Consumer, err error) {
	err = Retry(ctx, logger, "subscribe to "+topic, func(ctx context.Context) (err error) {
		c, err = l.Subscribe(ctx, topic, group)
		return err
	})
	return c, err
}

// Next polls until a poll succeeds or ctx ends; the error is ctx's. It calls rejoin when the topic was re-created. While the log is
// away, Next waits and logs that it does.
func Next(
	ctx context.Context, logger *slog.Logger, poll func(context.Context) ([]dispatch.Message, error), rejoin func(context.Context) error,
) ([]dispatch.Message, error) {
	for {
		messages, err := poll(ctx)
		if errors.Is(err, dispatch.ErrRecreated) {
			err = rejoin(ctx)
		}
		if err == nil {
			return messages, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		logger.Warn("cannot consume", "error", err)
		if err := Sleep(ctx, pollPause); err != nil {
			return nil, err
		}
	}
}

// NextOf is Next for a consumer that only has to join its group again when its topic was re-created.
func NextOf(
	ctx context.Context, logger *slog.Logger, log dispatch.Log, topic, group string, c *dispatch.Consumer, limit int,
) ([]dispatch.Message, error) {
	return Next(ctx, logger, func(ctx context.Context) ([]dispatch.Message, error) { return (*c).Poll(ctx, limit) },
		func(ctx context.Context) (err error) {
			*c, err = dispatch.Rejoin(ctx, log, topic, group, *c)
			return err
		})
}

// Sleep waits for d, or less when ctx ends; then it returns ctx's error.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Runner is a service.
type Runner interface {
	Run(ctx context.Context) error
}

// Stage is a service of a process, with a name for the log.
type Stage struct {
	Name    string
	Service Runner
}

// InOrder runs all stages until ctx ends or one of them fails. Then it stops them one after the other in the order given, in which
// work flows, so that a service that drains finds everyone downstream alive.
func InOrder(ctx context.Context, logger *slog.Logger, stages ...Stage) error {
	type running struct {
		stop context.CancelFunc
		done chan error
	}
	all := make([]running, len(stages))
	failed := make(chan struct{}, len(stages))
	for i, s := range stages {
		sctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		r := running{stop: stop, done: make(chan error, 1)}
		all[i] = r
		go func() {
			err := s.Service.Run(sctx)
			r.done <- err
			if err != nil {
				failed <- struct{}{}
			}
		}()
	}
	select {
	case <-ctx.Done():
	case <-failed:
	}
	var errs []error
	for i, s := range stages {
		all[i].stop()
		if err := <-all[i].done; err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, fmt.Errorf("%s: %w", s.Name, err))
		}
		logger.Debug("service stopped", "service", s.Name)
	}
	return errors.Join(errs...)
}
