// Package reads carries out the operations that change nothing: it shows jobs, executions, dead letters and the state of
// dispatch, and previews schedules.
//
// It promises: an answer shows what was acknowledged before it. A deleted job, and everything that belongs to it, is not
// found. What one request reads and holds in memory is bounded, however much there is.
package reads

import (
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// Reads carries out the operations on its ports.
type Reads struct {
	Jobs     jobstore.Jobs
	Pending  jobstore.Pending
	History  jobstore.History
	Settings jobstore.Settings
	Outcomes attempts.Outcomes
	// Bulk holds the operations.
	Bulk *operations.Store
	// Pools knows where the logs of workers are.
	Pools *pools.Known
	Clock clock.Clock
	// Partitions is the store's partition count.
	Partitions int
}

// Operations returns the operations by their ids in the document.
func (rs *Reads) Operations() map[string]edge.Operation {
	return map[string]edge.Operation{
		"getJob": rs.getJob, "listJobs": rs.listJobs, "getExecution": rs.getExecution, "listExecutions": rs.listExecutions,
		"listDeadLetters": rs.listDeadLetters, "getDispatch": rs.getDispatch, "previewSchedule": rs.previewSchedule,
		"listOccurrences": rs.listOccurrences, "getForecast": rs.getForecast,
		"getOperation": rs.getOperation, "listOperations": rs.listOperations,
		"listIncidents": rs.listIncidents, "listJobChanges": rs.listJobChanges, "listChanges": rs.listChanges,
	}
}
