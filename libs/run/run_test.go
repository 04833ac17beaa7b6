package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
)

func TestAWaitTellsEachNewReasonOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		reasons := []string{"connection reset", "connection reset", "wrong password", "wrong password", "wrong password"}
		err := Retry(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), "connect", func(context.Context) error {
			if len(reasons) == 0 {
				return nil
			}
			defer func() { reasons = reasons[1:] }()
			return errors.New(reasons[0])
		})
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		for i, want := range []string{"connection reset", "wrong password", "server answers again"} {
			if len(lines) != 3 || !strings.Contains(lines[i], want) {
				t.Fatalf("the log has no %q in line %d of 3:\n%s", want, i+1, log.String())
			}
		}
	})
}

func TestAWaitTellsAFewReasonsHoweverManyThereAre(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		tries := 0
		err := Retry(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), "connect", func(context.Context) error {
			switch tries++; {
			case tries > 100:
				return nil
			case tries > 50: // a reason of its own each time
				return errors.New(strings.Repeat("away ", tries))
			case tries > 20:
				return errors.New("wrong password")
			default: // the same reason
				return fmt.Errorf("from port %d: connection reset", 50_000+tries)
			}
		})
		if lines := strings.Count(log.String(), "\n"); err != nil || lines != maxTold+1 || !strings.Contains(log.String(), "wrong password") {
			t.Errorf("%v; %d lines:\n%s", err, lines, log.String())
		}
	})
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin, tries := time.Now(), 0
		err := Retry(ctx, slog.New(slog.DiscardHandler), "connect", func(context.Context) error { tries++; return errors.New("away") })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if tries < 20 || tries > 25 { // 9 pauses up to 5 s, then one of 5 s each
			t.Errorf("%d tries in a minute", tries)
		}
	})
}
