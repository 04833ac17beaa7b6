package hotbucket

import (
	"context"

	"github.com/minutehand/minutehand/libs/job"
)

// AtOnce bounds the partitions that one caller asks the hot tier about at once.
const AtOnce = 64

// Near returns those of the entries that are due before the horizons of their partitions, which is where their writers add them
// themselves. Each partition is asked once, all together. With an error it returns none.
func Near(ctx context.Context, b Buckets, entries []job.Entry) ([]job.Entry, error) {
	index := map[int]int{}
	var partitions []int
	for i := range entries {
		p := entries[i].Partition
		if _, known := index[p]; !known {
			index[p] = len(partitions)
			partitions = append(partitions, p)
		}
	}
	if len(partitions) == 0 {
		return nil, nil
	}
	horizons, err := b.Horizons(ctx, partitions)
	if err != nil {
		return nil, err
	}
	var near []job.Entry
	for i := range entries {
		if entries[i].DueAt.Before(horizons[index[entries[i].Partition]]) {
			near = append(near, entries[i])
		}
	}
	return near, nil
}

// AddNear adds to their hot buckets those of the entries that Near returns.
func AddNear(ctx context.Context, b Buckets, entries []job.Entry) error {
	near, err := Near(ctx, b, entries)
	if err != nil || len(near) == 0 {
		return err
	}
	return b.Add(ctx, near)
}

// Answers returns a function that returns nil if a partition's hot bucket answers.
func Answers(b Buckets) func(ctx context.Context, partition int) error {
	return func(ctx context.Context, partition int) error {
		_, err := b.Incarnations(ctx, []int{partition})
		return err
	}
}
