package sim

import (
	"fmt"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/sim/servers"
	"github.com/minutehand/minutehand/services/all-in-one/assembly"
)

// Ports are the ports given to a process. A broken variant of the code replaces some of them.
type Ports = assembly.Ports

// The weights of operations, from those called all the time and those called for each fire to rare ones.
const (
	always, steadily, often, seldom, rarely = 0.05, 0.3, 1, 4, 25
)

var ops []*Op

// newOp registers an operation, so that the report can name operations at which nothing ever went wrong.
func newOp(port, name string, class Class, weight float64) *Op {
	op := &Op{Port: port, Name: name, Class: class, Weight: weight}
	ops = append(ops, op)
	return op
}

// client is one process's ports: the servers behind faults.
type client struct {
	p   *process
	hot *servers.HotClient
}

func (p *process) ports() Ports {
	c := &client{p: p, hot: p.w.hot.Client(p.name)}
	ports := Ports{
		Jobs: jobs{c}, Pending: pending{c}, History: history{c}, Settings: settings{c}, Hot: buckets{c}, Records: records{c},
		Log: log{c}, Coord: coordinator{c}, Archive: objects{c}, Board: board{c}, Transport: transport{c}, Owners: owners{c},
	}
	if p.w.pooled {
		ports.Pools = queues{c, c.hot.Pools()}
	}
	return ports
}

// first returns the key of a call about many items: the smallest, which depends least on the timing of the others.
func first[T any](list []T, key func(T) string) string {
	if len(list) == 0 {
		return ""
	}
	smallest := key(list[0])
	for _, x := range list[1:] {
		smallest = min(smallest, key(x))
	}
	return smallest
}

func entryKey(e job.Entry) string      { return locatorKey(e.Locator) }
func sharedKey(e *job.Entry) string    { return locatorKey(e.Locator) }
func locatorKey(l job.Locator) string  { return fmt.Sprintf("%s/%d", l.ExecutionID, l.Attempt) }
func attemptKey(k attempts.Key) string { return fmt.Sprintf("%s/%d", k.ExecutionID, k.Attempt) }
func same(s string) string             { return s }

// pair holds the results of a call that returns two.
type pair[A, B any] struct {
	a A
	b B
}
