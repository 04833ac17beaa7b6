package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// sometimes lists what must have happened in some run out of many: a check of something that never happens checks nothing.
// Names that begin with "minutehand_" are counters of the services, with their labels.
var sometimes = []string{
	"an occurrence fired by backfill", "a run of occurrences skipped as missed", "an occurrence skipped by a pause", "an occurrence skipped by an overlap", "an occurrence that waited in line", "an occurrence without a place in line", "an execution whose place another took", "an attempt taken over",
	"an execution retried", "a dead letter", "an entry repeated by a slow writer", "a definition that an update replaced",
	"a pause that was answered", "a cancel that was answered", "an update that was answered", "a job of a batch",
	"an execution whose cancel was answered", "an execution redriven", "a resume that was answered",
	"a process told to stop", "a server that hung", "a change of the clocks",
	"a write of which a part took effect", "a change that plain reads did not see", "a log that lost its end",
	"a topic whose positions were forgotten", "a server of the hot tier that was replaced", "a call that a replaced server let pass",
	"a change that was refused because another was faster", "a decision that had been made before", "an execution on a page",
	"a key that another job had", "a key of a job that was deleted", "an occurrence that an account showed as ended",
	"an entry for which the hot tier had no room", "an outcome that the hot tier forgot",
	"an incident that is closed", "an incident of start_within because of late", "an incident of start_within because of not_dispatched", "an incident of start_within because of missed",
	"an incident of finish_within because of failed", "an incident of finish_within because of late", "an incident of finish_within because of retrying",
	"a notification of dead_letter", "a notification of sla_missed", "a notification of paused_by_410", "a notification of recovered", "a notification that was refused",
	"an execution that follows another", "an execution that follows a failure", "an execution that follows several", "an execution that follows and was paused", "a chain of three",
	"a forecast", "minutehand_bucket_loader_forecasts_total",
	"an operation that was done", "an operation that was cancelled", "an execution that went elsewhere", "minutehand_bucket_loader_operation_executions_total{backfill}", "minutehand_bucket_loader_operation_executions_total{replay}", "minutehand_bucket_loader_operation_executions_total{redrive}",
	"minutehand_bucket_loader_mended_schedules_total", "minutehand_bucket_loader_put_back_entries_total", "minutehand_bucket_loader_closed_minutes_total",
	"minutehand_scheduler_worker_late_decisions_total{fire}", "minutehand_scheduler_worker_late_decisions_total{skip}",
	"minutehand_scheduler_worker_parked_total", "minutehand_scheduler_worker_postponed_total",
	"minutehand_scheduler_worker_dropped_holds_total",
	"minutehand_executor_deferred_total", "minutehand_executor_duplicate_fires_total", "minutehand_executor_refused_total",
	"minutehand_executor_asked_total", "minutehand_executor_outcomes_total{worker_lost}", "minutehand_executor_outcomes_total{timed_out}",
	"minutehand_audit_writer_discarded_objects_total",
	"a task that a worker had", "a task that came with progress", "a task that its worker had lost", "a task that was given back", "a task that a replaced server let pass",
	"a worker told to stop", "a worker believed that had completed", "a worker believed that had failed",
	"minutehand_tasks_ended_total{worker_lost}", "minutehand_tasks_ended_total{cancelled}", "minutehand_tasks_ended_total{timed_out}",
}

// seen counts the events of a run by name.
func (w *world) seen(a *ledger.Account) map[string]int {
	n := map[string]int{}
	w.seenByMetrics(n)
	n["an entry for which the hot tier had no room"], n["an outcome that the hot tier forgot"] = w.hot.Bounded()
	for _, f := range w.faults.struck {
		if what := map[Kind]string{
			Restart: "a process told to stop", Hang: "a server that hung", FailPartly: "a write of which a part took effect",
			Unseen: "a change that plain reads did not see", Shorten: "a log that lost its end",
			Forget: "a topic whose positions were forgotten", Replace: "a server of the hot tier that was replaced",
		}[f.Kind]; what != "" {
			n[what]++
		}
	}
	if !dateOf(w.faults.dice).IsZero() {
		n["a change of the clocks"]++
	}
	seenByAccount(n, a)
	for _, k := range a.Keyed {
		if k.Refused {
			n["a key that another job had"]++
		}
	}
	n["a key of a job that was deleted"] = w.reused
	for _, o := range a.Operations {
		n["an operation that was "+o.Status]++
	}
	for _, x := range a.Notifications {
		if n["a notification of "+string(x.Cause)]++; !x.Accepted {
			n["a notification that was refused"]++
		}
	}
	n["an execution that went elsewhere"] = wentElsewhere(a)
	n["a forecast"] = foreseen(a)
	for _, i := range a.Incidents {
		n["an incident of "+i.Deadline+" because of "+i.Cause]++
		n["an incident that is "+i.Status]++
	}
	for _, list := range a.ShownBefore {
		n["an occurrence that an account showed as ended"] += len(list)
	}
	for _, j := range a.Jobs {
		if !j.Job.StoppedBefore.IsZero() {
			n["an execution whose place another took"]++
		}
		n["a definition that an update replaced"] += len(j.Superseded)
	}
	for _, s := range a.Stops {
		n[map[ledger.StopKind]string{
			ledger.StopPause: "a pause that was answered", ledger.StopCancel: "a cancel that was answered",
			ledger.StopUpdate: "an update that was answered", ledger.StopExecution: "an execution whose cancel was answered",
		}[s.Kind]]++
	}
	n["a dead letter"], n["a job of a batch"] = len(a.DeadLetters), w.together
	n["a change that was refused because another was faster"], n["a decision that had been made before"] = w.raced, w.decidedBefore
	for _, executions := range w.executions {
		n["an execution on a page"] += len(executions)
	}
	n["an execution redriven"], n["a resume that was answered"] = w.redriven, len(a.Resumed)
	n["a task that its worker had lost"] = w.tasksLost
	seenOfWorkers(n, a)
	return n
}

// seenOfWorkers counts what workers of pools had and told.
func seenOfWorkers(n map[string]int, a *ledger.Account) {
	for i := range a.Calls {
		c := &a.Calls[i]
		if !c.Pool {
			continue
		}
		n["a task that a worker had"]++
		if c.Progress > 0 {
			n["a task that came with progress"]++
		}
		if c.GivenBack {
			n["a task that was given back"]++
		}
		if c.Replaced {
			n["a task that a replaced server let pass"]++
		}
	}
	for _, w := range a.Words {
		if w.Stops {
			n["a worker told to stop"]++
		}
		if w.Kind == ledger.WordCompleted || w.Kind == ledger.WordFailed {
			n["a worker believed that had "+string(w.Kind)]++
		}
	}
}

// wentElsewhere counts the calls of replays at targets other than their jobs'.
func wentElsewhere(a *ledger.Account) (n int) {
	for i := range a.Calls {
		if strings.HasSuffix(a.Calls[i].Host, ledger.ElsewhereSuffix) {
			n++
		}
	}
	return n
}

// foreseen counts the forecasts that there were.
func foreseen(a *ledger.Account) (n int) {
	for _, f := range a.Forecasts {
		if !f.AsOf.IsZero() {
			n++
		}
	}
	return n
}

// seenByMetrics adds up the metrics of all processes.
func (w *world) seenByMetrics(n map[string]int) {
	for _, registry := range w.registries {
		families, _ := registry.Gather() // as far as they can be gathered
		for _, f := range families {
			for _, m := range f.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetValue())
				}
				name := f.GetName()
				if len(labels) > 0 {
					name += "{" + strings.Join(labels, ",") + "}"
				}
				n[name] += int(m.GetCounter().GetValue())
			}
		}
	}
}

// seenByAccount counts what the events and calls of an account show.
func seenByAccount(n map[string]int, a *ledger.Account) {
	for i := range a.Events {
		e := &a.Events[i]
		switch {
		case e.Entry.BackfillFired > 0 && e.Disposition == job.DispositionFired:
			n["an occurrence fired by backfill"]++
		case e.Type == job.EventSkipped && e.Disposition == job.DispositionSkippedMissed:
			n["a run of occurrences skipped as missed"]++
		case e.Disposition == job.DispositionSkippedPaused:
			n["an occurrence skipped by a pause"]++
		case e.Disposition == job.DispositionSkippedOverlap && e.Entry.Queues:
			n["an occurrence without a place in line"]++
		case e.Disposition == job.DispositionSkippedOverlap:
			n["an occurrence skipped by an overlap"]++
		case e.Disposition == job.DispositionFired && e.Entry.InLine():
			n["an occurrence that waited in line"]++
		}
		if e.Entry.Trigger == job.TriggerAfter && e.Type == job.EventAttempt {
			seenToFollow(n, a, e)
		}
		if e.Entry.Attempt > 1 {
			n["an execution retried"]++
		}
		if e.Entry.Repeats != 0 {
			n["an entry repeated by a slow writer"]++
		}
	}
	tokens := map[string]string{}
	for _, c := range a.Calls {
		if c.Replaced {
			n["a call that a replaced server let pass"]++
		}
		attempt := fmt.Sprint(c.ExecutionID, "/", c.Attempt)
		if before, called := tokens[attempt]; called && before != c.Token {
			n["an attempt taken over"]++
		}
		tokens[attempt] = c.Token
	}
}

// registry returns the registry of a process's metrics; it outlives the process.
func (w *world) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.registries = append(w.registries, r)
	return r
}

// seenToFollow counts an execution that follows another.
func seenToFollow(n map[string]int, a *ledger.Account, e *job.Event) {
	n["an execution that follows another"]++
	if e.Disposition == job.DispositionSkippedPaused {
		n["an execution that follows and was paused"]++
	}
	if e.Entry.Note.Chain > 2 {
		n["a chain of three"]++
	}
	source := e.Entry.Note.Source
	if slices.ContainsFunc(a.DeadLetters, func(d job.DeadLetter) bool { return d.Event.Entry.ExecutionID == source }) {
		n["an execution that follows a failure"]++
	}
	for k := range a.Jobs {
		if j := &a.Jobs[k].Job; j.ID == e.Entry.JobID && j.Definition.Schedule.All {
			n["an execution that follows several"]++
		}
	}
}
