// Package bucket defines where an entry lives: which partition a job belongs to, and how minutes follow each other. Like the rest
// of the vocabulary it is pure.
package bucket

import "github.com/cespare/xxhash/v2"

// DefaultPartitions is the partition count of a store that is set up without one. It is fixed from then on (decision 48 says why it is this).
const DefaultPartitions = 256

// MaxPartitions bounds the partition count with which a store may be set up.
const MaxPartitions = 1 << 14

// Partition returns the partition of a job among count: XXH64(job id, seed 0) mod count.
func Partition(jobID string, count int) int {
	return int(xxhash.Sum64String(jobID) % uint64(count))
}
