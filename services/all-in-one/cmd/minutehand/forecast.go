package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

type forecastCmd struct {
	client
	From string `help:"Only minutes from this instant on." placeholder:"RFC3339"`
	To   string `help:"Only minutes before this instant." placeholder:"RFC3339"`
	Step string `enum:"1m,5m,15m,1h" default:"1m" help:"What an item covers, with -o json." placeholder:"STEP"`
}

// Help implements kong.HelpProvider.
func (forecastCmd) Help() string {
	return `A line for each hour, with a column for each minute. If there are very many jobs it is estimated from a sample, and the error is stated.
It is made again every half minute, and up to every hour where it takes long; a job that was created since is not in it. It covers 24 hours.

  minutehand forecast
  minutehand forecast --step 1h -o json
  minutehand forecast --to $(date -u +%FT23:59:59Z)      the rest of the day, in UTC`
}

// forecastAnswer is what the API answers.
type forecastAnswer struct {
	AsOf    time.Time        `json:"as_of,omitzero"`
	Share   float64          `json:"share"`
	Planned int              `json:"planned"`
	Error   int              `json:"error"`
	Items   []forecastMinute `json:"items"`
}

// forecastMinute is an item of it.
type forecastMinute struct {
	At      time.Time `json:"at"`
	Planned int       `json:"planned"`
	Error   int       `json:"error"`
}

// Run implements the command.
func (c *forecastCmd) Run(ctx context.Context) error {
	query := url.Values{}
	for name, value := range map[string]string{"from": c.From, "to": c.To} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if c.Output == "json" {
		query.Set("step", c.Step)
	}
	var f forecastAnswer
	if _, err := c.do(ctx, http.MethodGet, "/forecast?"+query.Encode(), nil, &f); err != nil {
		return err
	}
	return c.print(f, f.plot)
}

// plot shows a line for each hour, with a bar for each of its minutes.
func (f *forecastAnswer) plot(w io.Writer) {
	if f.AsOf.IsZero() {
		fmt.Fprintln(w, "There is no forecast yet: one is made in the first two minutes. With more than 1,000 tenants it may take longer.")
		return
	}
	of := "of all jobs"
	if f.Share < 1 {
		of = fmt.Sprintf("from %.3g %% of the jobs", 100*f.Share)
	}
	fmt.Fprintf(w, "%s planned, as of %s, %s.\n", number(f.Planned, f.Error), f.AsOf.UTC().Format(time.DateTime+" UTC"), of)
	peak := 0
	for _, m := range f.Items {
		peak = max(peak, m.Planned)
	}
	for first := 0; first < len(f.Items); {
		hour, line, last := f.Items[first].At.UTC().Truncate(time.Hour), []rune(strings.Repeat(" ", minutesShown)), first
		sum, off, most := 0, 0, f.Items[first]
		for ; last < len(f.Items) && f.Items[last].At.Sub(hour) < time.Hour; last++ {
			m := f.Items[last]
			line[m.At.UTC().Minute()] = bar(m.Planned, peak)
			sum, off = sum+m.Planned, off+m.Error
			if m.Planned > most.Planned {
				most = m
			}
		}
		fmt.Fprintf(w, "%s  %s  %s", hour.Format("01-02 15h"), string(line), number(sum, off))
		if most.Planned > 0 {
			fmt.Fprintf(w, ", at most %s at %s", number(most.Planned, most.Error), most.At.UTC().Format("15:04"))
		}
		fmt.Fprintln(w)
		first = last
	}
}

// minutesShown is how many minutes a line shows.
const minutesShown = 60

// number returns a number with its error, if it has one.
func number(n, off int) string {
	if off == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d ± %d", n, off)
}

// bar returns the bar of n where that of peak is full.
func bar(n, peak int) rune {
	bars := []rune("▁▂▃▄▅▆▇█")
	if n == 0 {
		return '·'
	}
	return bars[(n*len(bars)-1)/peak]
}
