// Package descriptors divides up how many files and connections a process may have open at once. Otherwise connections from
// anybody, and calls to targets that hang, would take the descriptors that the store and the log cannot do without.
package descriptors

import (
	"fmt"
	"syscall"
)

const (
	// Least is the smallest limit with which a process starts.
	Least = 512
	// other is reserved for everything that is not counted: listeners, the archive's files, dials that overlap.
	other = 64
	// most bounds how many descriptors a process uses.
	most = 65536
)

// Share is what each part of a process may have open.
type Share struct {
	// Store is for the files of the embedded store, or the connections to servers.
	Store int
	// Clients is for connections to the API, Calls for those to targets.
	Clients, Calls int
}

// Limit returns how many descriptors this process may have open.
func Limit() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur > most {
		return most // Go raises the soft limit to the hard one at start-up
	}
	return int(l.Cur)
}

// Of divides a limit. Its error is a sentence that can be shown to a person.
func Of(limit int) (Share, error) {
	if limit < Least {
		return Share{}, fmt.Errorf("%d files and connections may be open at once, and %d are needed at least: raise the limit with ulimit -n", limit, Least)
	}
	s := Share{Store: min(limit/4, 1000), Clients: min(limit/4, 4096)}
	s.Calls = limit - s.Store - s.Clients - other
	return s, nil
}
