package forecast

import (
	"context"
	"fmt"
	"slices"

	"github.com/minutehand/minutehand/libs/job"
)

// mostMoved is how many minutes behind the one in which it is due a row may lie while another of the same execution is there.
const mostMoved = 4

// once returns rows without those of which another lies in an earlier bucket, and was read with that. An execution has two rows where a slow writer,
// or the audit of the schedules, has repeated one in a later bucket, or both of these have led to the next.
func (p *pass) once(ctx context.Context, rows []job.PendingRow) ([]job.PendingRow, error) {
	var asked []job.Locator
	for i := range rows {
		asked = append(asked, earlier(&rows[i])...)
	}
	if len(asked) == 0 {
		return rows, nil
	}
	var there map[job.Locator]job.PendingRow
	err := p.try(ctx, func() (err error) {
		there, err = p.Pending.Rows(ctx, asked)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for other rows of executions: %w", err)
	}
	return slices.DeleteFunc(slices.Clone(rows), func(r job.PendingRow) bool {
		return slices.ContainsFunc(earlier(&r), func(l job.Locator) bool {
			_, found := there[l]
			return found
		})
	}), nil
}

// earlier returns where other rows of a row's execution may lie; none for a row in the minute in which it is due.
func earlier(r *job.PendingRow) (list []job.Locator) {
	for minute := max(job.Minute(r.DueAt), r.Minute-mostMoved); minute < r.Minute; minute++ {
		l := r.Locator
		l.Minute = minute
		list = append(list, l)
	}
	return list
}
