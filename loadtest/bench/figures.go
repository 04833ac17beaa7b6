package main

import (
	"fmt"
	"os"
	"sort"
	"time"
)

// figure is a value that each round returns.
type figure struct {
	name, unit string
	of         func(round) float64
}

// figures returns those of some rounds, CPU ordered by its amount.
func figures(all []round, steady time.Duration) []figure {
	list := []figure{{fmt.Sprintf("stampede of %d webhooks due at one instant", stampedeFires), "fires/s", func(r round) float64 { return r.stampede }}}
	for _, load := range []struct {
		rate int
		of   func(round) lateness
	}{{calmRate, func(r round) lateness { return r.calm }}, {busyRate, func(r round) lateness { return r.busy }}} {
		list = append(list,
			figure{fmt.Sprintf("steady %d/s for %s: lateness p50", load.rate, steady), "ms", func(r round) float64 { return load.of(r).p50 }},
			figure{"… p99", "ms", func(r round) float64 { return load.of(r).p99 }})
	}
	list = append(list, figure{"early", "", func(r round) float64 { return r.early }})
	var cpu []figure
	for name := range all[0].cpu {
		cpu = append(cpu, figure{fmt.Sprintf("CPU per fire at %d/s: %s", busyRate, name), "µs", func(r round) float64 { return r.cpu[name] }})
	}
	sort.Slice(cpu, func(i, j int) bool { return cpu[i].in(all).median() > cpu[j].in(all).median() })
	return append(append(list, cpu...), figure{"… all processes of the machine", "µs", func(r round) float64 { return r.whole }})
}

// in returns the figure of each round.
func (f figure) in(all []round) samples {
	var s samples
	for _, r := range all {
		s = append(s, f.of(r))
	}
	return s
}

func printRounds(w *os.File, title string, all []round, steady time.Duration) {
	fmt.Fprintf(w, "| %s; median of %d rounds (least … greatest) | |\n|---|---|\n", title, len(all))
	for _, f := range figures(all, steady) {
		fmt.Fprintf(w, "| %s | %s %s |\n", f.name, f.in(all), f.unit)
	}
	fmt.Fprintln(w)
}

// printBeside prints by how much the medians differ.
func printBeside(w *os.File, without, with []round, steady time.Duration) {
	fmt.Fprintf(w, "| jobs at rest make of the median | |\n|---|---|\n")
	for _, f := range figures(without, steady) {
		if before := f.in(without).median(); before > 0 {
			fmt.Fprintf(w, "| %s | %+.0f %% |\n", f.name, 100*(f.in(with).median()/before-1))
		}
	}
	fmt.Fprintln(w)
}
