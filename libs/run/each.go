package run

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// Each calls do for every i below n, at most atOnce at a time, and returns the error of the first call that failed. After an error
// it begins no more calls.
func Each(n, atOnce int, do func(i int) error) error {
	if n == 1 {
		return do(0)
	}
	group, failed := errgroup.WithContext(context.Background())
	group.SetLimit(atOnce)
	for i := range n {
		if failed.Err() != nil {
			break
		}
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}
