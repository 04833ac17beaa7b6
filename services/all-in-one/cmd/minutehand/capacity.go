package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/services/all-in-one/sizing"
)

type capacityCmd struct {
	output
	Fires      float64 `name:"fires-per-second" default:"100000" help:"First attempts a second." placeholder:"N"`
	Pending    float64 `default:"1e9" help:"Jobs that wait for their instant." placeholder:"N"`
	Retention  string  `default:"30d" help:"How long history is kept: 30d, 12h." placeholder:"TIME"`
	Log        string  `name:"log-retention" default:"7d" help:"How long Kafka keeps records." placeholder:"TIME"`
	PayloadKB  float64 `name:"payload-kb" default:"0.25" help:"Size of a payload." placeholder:"KB"`
	Recurring  float64 `default:"0.5" help:"Share of fires that are of recurring jobs." placeholder:"SHARE"`
	Retries    float64 `default:"0.02" help:"Share of fires that fail and are tried again." placeholder:"SHARE"`
	Partitions int     `default:"${partitions}" help:"Partitions of the installation." placeholder:"N"`
	Costs      string  `help:"File with other costs than those that this release was measured to have (make bench-costs writes one)." placeholder:"FILE"`
}

// Help implements kong.HelpProvider.
func (capacityCmd) Help() string {
	return `Says what a load needs of each service and server, from costs that were measured with one of each, and what is scarce first. It says which
figures were measured and which follow from them: a plan to begin with, to be held against a load test (loadtest/k6).

  minutehand capacity --fires-per-second 2000 --pending 5e6
  minutehand capacity --fires-per-second 100000 --pending 1e9 --retention 30d --partitions 1024`
}

// Run implements the command.
func (c *capacityCmd) Run(context.Context) error {
	costs, err := sizing.Measured()
	if c.Costs != "" {
		var text []byte
		if text, err = os.ReadFile(c.Costs); err == nil {
			costs, err = sizing.Parse(text)
		}
	}
	if err != nil {
		return usageError{err}
	}
	kept, err := retention("--retention", c.Retention)
	logged, err2 := retention("--log-retention", c.Log)
	if err := errors.Join(err, err2); err != nil {
		return usageError{err}
	}
	plan, err := costs.Plan(sizing.Load{
		FiresPerSecond: c.Fires, PayloadKB: c.PayloadKB, Recurring: c.Recurring, Retries: c.Retries, Pending: c.Pending, Retention: kept, LogRetention: logged, Partitions: c.Partitions,
	})
	if err != nil {
		return usageError{err}
	}
	return c.print(plan, func(w io.Writer) { showPlan(w, &costs, &plan, c.wide()) })
}

// showPlan prints a plan for people.
func showPlan(w io.Writer, costs *sizing.Costs, plan *sizing.Plan, wide bool) {
	header := []any{"TIER", "PROCESSES", "CORES", "MEMORY", "DISK", "NETWORK"}
	if wide {
		header = append(header, "BASIS")
	}
	t := newTable(w, header...)
	cores := 0.0
	for _, n := range plan.Needs {
		cores += n.Cores
		cells := []any{n.Tier, n.Processes, fmt.Sprintf("%.1f", n.Cores), bytesOf(n.Memory, ""), bytesOf(n.Disk, ""), bytesOf(n.Network, "/s")}
		if n.Tier == "S3" {
			cells[1], cells[2] = "-", "-"
			cores -= n.Cores
		}
		if wide {
			cells = append(cells, n.Basis)
		}
		t.row(cells...)
	}
	t.end()
	fmt.Fprintf(w, "\n%.0f cores in use; processes of services have a core each and nodes of Cassandra and Kafka eight, at most 60 %% used, so that a lost zone leaves enough.\n", cores)
	fmt.Fprintf(w, "Needs at least %d partitions, and %d of Kafka's (MINUTEHAND_KAFKA_PARTITIONS).\nScarce first: %s.\n", plan.Partitions, plan.KafkaPartitions, plan.Bottleneck)
	fmt.Fprintf(w, "Measured: the costs of one process of each, on %s (%s, %s). Extrapolated: everything beyond that (-o wide says what).\n", costs.Machine, costs.At, costs.Command)
	if l := costs.Check.Load; l.FiresPerSecond > 0 {
		fmt.Fprintf(w, "Held against a load that nothing was fitted to (%.0f/s, %.0f KB, %.0f %% recurring, %.0f %% retried, %d partitions) the model is off by %+.0f %%.\n",
			l.FiresPerSecond, l.PayloadKB, 100*l.Recurring, 100*l.Retries, l.Partitions, 100*costs.Check.Off())
	}
}

// bytesOf writes a number of bytes as people do; "-" for none.
func bytesOf(n float64, per string) string {
	if n <= 0 {
		return "-"
	}
	units := []string{"B", "KB", "MB", "GB", "TB", "PB", "EB"}
	i := min(int(math.Log10(n)/3), len(units)-1)
	return fmt.Sprintf("%.3g %s%s", n/math.Pow(1000, float64(i)), units[i], per)
}

// retention reads a duration that may be in days.
func retention(flag, text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if err == nil && n >= 0 && n < 36500 {
			return time.Duration(n * 24 * float64(time.Hour)), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%s is %s; write it as 30d or 12h", flag, text)
}
