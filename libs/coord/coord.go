// Package coord is the port of the coordinator: who owns which partitions in which role, and numbers that grow with every start of
// a process.
//
// What every adapter promises: two members of a role never hold one partition under one epoch; an epoch given out later for the
// same partition is greater.
package coord

import "context"

// Role is a kind of owner.
type Role string

// The roles that own partitions.
const (
	RoleLoader Role = "bucket-loader"
	RoleWorker Role = "scheduler-worker"
)

// Owner is one member's ownership of a partition in a role, under an epoch that is greater than those of all owners before.
type Owner struct {
	Role      Role
	Partition int
	Epoch     int64
}

// Coordinator gives out partitions and numbers.
type Coordinator interface {
	// StartNumber draws a number that is greater than every one drawn before.
	StartNumber(ctx context.Context) (int64, error)
	// Join makes this process a member of a role until ctx ends. The channel carries the whole set of what the process owns each time
	// it changes; it is closed when ctx ends.
	Join(ctx context.Context, role Role) (<-chan []Owner, error)
}
