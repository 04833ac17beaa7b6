package run

import (
	"context"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
)

// HasRead waits until a group has read what a topic has now, for some seconds at most, and reports whether it has.
func HasRead(ctx context.Context, l dispatch.Log, topic, group string, seconds int) (bool, error) {
	end, err := l.End(ctx, topic)
	if err != nil {
		return false, fmt.Errorf("read the end of %s: %w", topic, err)
	}
	for range seconds {
		read, err := l.Committed(ctx, topic, group)
		if err != nil {
			return false, fmt.Errorf("read how far %s is: %w", group, err)
		}
		if read.Passed(end) {
			return true, nil
		}
		if err := Sleep(ctx, time.Second); err != nil {
			return false, err
		}
	}
	return false, nil
}
