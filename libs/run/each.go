package run

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// Each does something for every i below n, at most so many at once, and returns the error of the first that failed. After an error no more
// are begun.
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
