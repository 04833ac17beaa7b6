package sim

import (
	"maps"
)

// Weather says how often which faults strike: the chance of each kind at a call of weight 1.
type Weather struct {
	Name   string
	Rates  map[Kind]float64
	Longer bool // delays may be longer than a lease
	// Scheduled is how many of each scheduled kind there are.
	Scheduled map[Kind]int
	// Crash is set if it causes losses, in the sense of the invariants: of a process, a hot tier or a log, or a stall longer
	// than a lease.
	Crash bool
}

// calm is a weather without faults, in which clocks agree: the others are compared with it.
var calm = Weather{Name: "calm"}

// weatherOf returns calm for one seed in twenty, and otherwise one of the weathers in turn.
func weatherOf(seed uint64) Weather {
	if (dice{seed}).roll("calm") < 0.05 {
		return calm
	}
	all := weathers()
	return all[seed%uint64(len(all))]
}

func weathers() []Weather {
	network := map[Kind]float64{
		FailBefore: 0.004, FailAfter: 0.004, FailPartly: 0.004, Unseen: 0.004, FailLate: 0.002, Twice: 0.003, SlowBefore: 0.003, SlowAfter: 0.003, Redeliver: 0.004,
	}
	with := func(more map[Kind]float64) map[Kind]float64 {
		rates := maps.Clone(network)
		maps.Copy(rates, more)
		return rates
	}
	deaths := map[Kind]float64{DieBefore: 0.0006, DieAfter: 0.0008}
	stalls := map[Kind]float64{StallBefore: 0.0005, StallAfter: 0.0007}
	both := maps.Clone(deaths)
	maps.Copy(both, stalls)
	return []Weather{
		{Name: "network", Rates: network, Scheduled: map[Kind]int{Restart: 3}},
		{Name: "deaths", Rates: with(deaths), Longer: true, Crash: true, Scheduled: map[Kind]int{Restart: 2, Hang: 1}},
		{Name: "stalls", Rates: with(stalls), Longer: true, Crash: true, Scheduled: map[Kind]int{Lapse: 3}},
		{Name: "hot tier", Rates: with(stalls), Longer: true, Crash: true, Scheduled: map[Kind]int{LoseHot: 2, FailOver: 2, Replace: 3}},
		{Name: "log", Rates: with(deaths), Longer: true, Crash: true, Scheduled: map[Kind]int{Recreate: 2, Shorten: 2, Forget: 1, Outage: 2, Hang: 1}},
		{
			Name: "owners", Rates: network, Longer: true, Crash: true,
			Scheduled: map[Kind]int{Lapse: 8, Outage: 2, Cut: 1, Restart: 2},
		},
		{
			Name: "everything", Rates: with(both), Longer: true, Crash: true,
			Scheduled: map[Kind]int{LoseHot: 1, FailOver: 1, Replace: 1, Recreate: 1, Shorten: 1, Forget: 1, Lapse: 2, Outage: 1, Hang: 1, Restart: 1},
		},
	}
}
