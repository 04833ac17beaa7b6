package sim

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/minutehand/minutehand/libs/job"
)

// Timeline writes what happened in a run to the jobs of its violations: what was requested, published, invoked and
// recorded, and every fault.
func (r *Result) Timeline(out io.Writer) {
	var ids []string
	for _, v := range r.Violations {
		if id := strings.TrimPrefix(v.JobID, job.JobPrefix); id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, m := range r.moments {
		concerns := m.about == "" || strings.HasPrefix(m.what, "FAULT ") && len(ids) == 0
		for _, id := range ids {
			concerns = concerns || strings.Contains(m.about, id)
		}
		if concerns {
			fmt.Fprintf(out, "%12s  %-18s %s  %s\n", m.at, m.who, m.what, m.about)
		}
	}
	for _, v := range r.Violations {
		fmt.Fprintln(out, "VIOLATION", v)
	}
}
