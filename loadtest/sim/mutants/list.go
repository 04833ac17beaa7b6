package main

// mutant is a change of a file's text, which must be there exactly once.
type mutant struct {
	name, file, from, to string
	first                uint64 // the first seed to try, 1 unless set: a few before one that is known to notice
}

var mutants = []mutant{
	{
		name: "fires go out however long ago the partition was read", file: "services/scheduler-worker/fire.go",
		from: "if t.lapsed(now, s.cfg.OwnerTTL) {",
		to:   "if false {",
	},
	{
		name: "no successor is written", file: "services/scheduler-worker/fire.go",
		from: "successors = append(successors, next)",
		to:   "_ = next",
	},
	{
		name: "another executor's lease counts as its own", file: "services/executor/execute.go",
		from:  "if err != nil || held {\n\t\treturn rec, held && err == nil",
		to:    "if err != nil || held || rec.Outcome == nil {\n\t\treturn rec, err == nil",
		first: 1640,
	},
	{
		name: "a call follows its last check at once", file: "services/executor/execute.go",
		from: "\tfor d := s.deps.Clock.Until(f.DueAt); d > 0;",
		to:   "\tfor d := s.deps.Clock.Until(f.DueAt); d > time.Second;",
	},
	{
		name: "a precise call follows its last check at once", file: "services/executor/execute.go",
		from: "return s.alarm.wait(ctx, f.DueAt)",
		to:   "return nil",
	},
	{
		name: "a retry is not written", file: "services/retry-manager/settle.go",
		from: "b.entries = append(b.entries, next)\n\t\ts.metrics.retries.Inc()",
		to:   "_ = next",
	},
	{
		name: "a retry does not wait", file: "libs/job/retry.go",
		from: "d *= 1 - p.Jitter + 2*p.Jitter*Unit(executionID, k)",
		to:   "d *= 0 * Unit(executionID, k)",
	},
	{
		name: "what was given up is no dead letter", file: "services/retry-manager/settle.go",
		from: "s.giveUp(b, e, reason)\n\t\ts.end(b, e, false)",
		to:   "s.end(b, e, false)",
	},
	{
		name: "a replay that went elsewhere is a dead letter", file: "services/retry-manager/settle.go",
		from: "if e.Entry.Elsewhere() == nil {",
		to:   "if e != nil {", first: 60,
	},
	{
		name: "a replay that is to go elsewhere calls the job's target", file: "libs/job/entry.go",
		from: "t.URL, t.Headers = x.URL, x.Headers",
		to:   "_ = x",
	},
	{
		name: "a bucket closes in which not everything is done", file: "services/bucket-loader/close.go",
		from: "done = done && rows[i].Done",
		to:   "done = done && (rows[i].Done || true)",
	},
	{
		name: "a schedule that is behind has lost its entry", file: "services/bucket-loader/internal/schedules/look.go",
		from: "s.alive = true",
		to:   "s.alive = false",
	},
	{
		name: "what an operation did not write counts as handed out", file: "services/bucket-loader/internal/bulk/bulk.go",
		from: "if err := r.Pending.Put(ctx, entries); err != nil {",
		to:   "if err := r.Pending.Put(ctx, entries[:len(entries)/2]); err != nil {",
	},
	{
		name: "a job with deadlines is registered and not listed", file: "services/job-api/internal/writes/create.go",
		from: "return incidents.Store{Lists: ws.deps.Settings}.Watch(ctx, j)",
		to:   "_ = incidents.Store{}\n\treturn nil",
	},
	{
		name: "an occurrence that was called late counts as in time", file: "services/bucket-loader/internal/watch/weigh.go",
		from: "case e.called && !e.began.IsZero() && e.began.After(p.deadline):",
		to:   "case e.called && !e.began.IsZero() && e.began.After(far):",
	},
	{
		name: "an owner is not owed a notice of a missed deadline", file: "services/bucket-loader/internal/watch/notify.go",
		from: "if !to.Tells(job.CauseSLAMissed) || slices.Contains(line.Told, id) {",
		to:   "if true {",
	},
	{
		name: "an owner is not owed a notice of a dead letter", file: "services/retry-manager/notify.go",
		from: "n := owed[list[i]]\n\t\treturn store.Owe(ctx, &n)",
		to:   "_ = store\n\t\treturn nil",
	},
	{
		name: "a job that follows others is registered, and these do not know", file: "libs/dependents/dependents.go",
		from: "for _, p := range j.Definition.Schedule.After {",
		to:   "for _, p := range j.Definition.Schedule.After[:0] {",
	},
	{
		name: "an execution is marked as done, and what follows it is not written", file: "services/retry-manager/follow.go",
		from: "entries = append(entries, *e)\n",
		to:   "_ = entries\n",
	},
	{
		name: "what follows an execution is not claimed", file: "libs/dependents/arrivals.go",
		from: "return Claim{ExecutionID: standing.ID, DefinitionID: standing.DefinitionID, At: standing.AcceptedAt, N: c.N}, nil",
		to:   "_ = standing\n\treturn c, nil",
	},
	{
		name: "a job follows when one of several had the instant", file: "libs/dependents/arrivals.go",
		from: "if complete(o, d.Schedule.After) {",
		to:   "if complete(o, d.Schedule.After[:1]) || true {",
	},
	{
		name: "a pause lets what follows begin", file: "libs/job/state.go",
		from: "case e.Trigger == TriggerAfter && e.Attempt == 1 && s.Status == StatusPaused:",
		to:   "case e.Trigger == TriggerAfter && e.Attempt == 0 && s.Status == StatusPaused:",
	},
	{
		name: "of a schedule that is behind nothing is planned", file: "services/bucket-loader/internal/forecast/plan.go",
		from: "if len(p.behind) < mostBehind {",
		to:   "if false {",
	},
	{
		name: "what an owner was told is not marked", file: "libs/notices/notices.go",
		from: "jobstore.Item{Name: n.ID() + told, Value: value}",
		to:   "jobstore.Item{Name: n.ID(), Value: value}",
	},
	{
		name: "a recovery is told before it has come", file: "services/bucket-loader/internal/tell/recover.go",
		from: "if err != nil || at.IsZero() {",
		to:   "if at = job.Later(at, x.At); err != nil {",
	},
	{
		name: "an occurrence that was called in time counts as late", file: "services/bucket-loader/internal/watch/weigh.go",
		from: "case e.called && !e.began.IsZero() && e.began.After(p.deadline):",
		to:   "case e.called && !e.began.IsZero() && e.began.After(p.due.Add(-far.Sub(p.due))):",
	},
	{
		name: "the cancel of an operation is answered and not stored", file: "services/job-api/internal/writes/operations.go",
		from: `o.End(operations.StatusCancelled, "", job.Instant(ws.deps.Clock.Now()))`,
		to:   "o.Reason = \"\"",
	},
	{
		name: "a trigger is answered and not written", file: "services/job-api/internal/writes/replay.go",
		from: "if !there {",
		to:   "if false && !there {",
	},
	{
		name: "a redrive is answered and not written", file: "services/job-api/internal/writes/redrive.go",
		from: "ws.putAll(ctx, r, entries)",
		to:   "ws.putAll(ctx, r, entries[:0])",
	},
	{
		name: "the cancel of an execution is answered and not kept", file: "services/job-api/internal/writes/execution.go",
		from: "j.StoppedExecutions = append(stopped, id)",
		to:   "j.StoppedExecutions = stopped",
	},
	{
		name: "a resume is answered and leaves the job paused", file: "services/job-api/internal/writes/change.go",
		from: "j.Status, j.Definition = job.StatusActive, def",
		to:   "j.Definition = def",
	},
	{
		name: "a stop is answered while a replaced server goes on", file: "libs/jobchange/jobchange.go",
		from:  "if c.HoldsIn == 0 {",
		to:    "if c.HoldsIn >= 0 {",
		first: 40,
	},
	{
		name: "a change that lost is published", file: "libs/job/change.go",
		from: "return has, !has && e.Change.Version > 0 && version >= e.Change.Version",
		to:   "return true, false",
	},
	{
		name: "a change is dropped while its row is on its way", file: "libs/job/change.go",
		from: "return has, !has && e.Change.Version > 0 && version >= e.Change.Version",
		to:   "return has, !has",
	},
	{
		name: "a change's entry is not written", file: "libs/jobchange/jobchange.go",
		from: "entries := []job.Entry{job.NewChange(l, j.ID, j.Tenant, change, edit.By)}",
		to:   "_, entries := change, []job.Entry(nil)",
	},
	{
		name: "an entry of a lost change is dropped and its writer is not fenced", file: "services/scheduler-worker/prepare.go",
		from: "if err := s.deps.Jobs.Replace(ctx, row); err != nil {",
		to:   "if c != nil {\n\t\t\treturn time.Time{}, s.finish(ctx, t)\n\t\t}\n\t\tif err := s.deps.Jobs.Replace(ctx, row); err != nil {",
	},
	{
		name: "a row forgets a change that is not published", file: "libs/jobchange/record.go",
		from: "return !open || row.Done",
		to:   "return open || !row.Done",
	},
	{
		name: "a trigger names nobody", file: "services/job-api/internal/writes/entry.go",
		from: "entries[i].WrittenAt, entries[i].Trace, entries[i].By = began, trace.Of(ctx), &by",
		to:   "_, entries[i].WrittenAt, entries[i].Trace = by, began, trace.Of(ctx)",
	},
	{
		name: "an account leaves out what was skipped together", file: "services/job-api/internal/reads/occurrences.go",
		from: "if x.Skipped != nil && x.Skipped.definitionID == o.DefinitionID && !at.Before(x.Skipped.From) && !at.After(x.Skipped.To) {",
		to:   "if x.Skipped != nil && at.Equal(x.Skipped.From) {",
	},
	{
		name: "an account goes on with a definition that was superseded", file: "services/job-api/internal/reads/occurrences.go",
		from: "end = d.EffectiveAt\n",
		to:   "_ = d.EffectiveAt\n",
	},
	{
		name: "an account shows what was decided to be called as skipped", file: "services/job-api/internal/reads/unrecorded.go",
		from:  "case found && row.Decision != nil && !row.Decision.Fire:",
		to:    "case found && row.Decision != nil:",
		first: 78,
	},
	{
		name: "a key is taken from a job that is about to be created", file: "services/job-api/internal/writes/jobkey.go",
		from: "err = ws.deps.Jobs.Create(ctx, job.Void(holder, j.Tenant, j.Key, job.Instant(ws.deps.Clock.Now())), true)",
		to:   "err = nil",
	},
	{
		name: "a request goes on whose key another took", file: "services/job-api/internal/writes/jobkey.go",
		from: "if err == nil && standing.IsVoid() {\n\t\treturn lostKey()",
		to:   "if err == nil && standing.IsVoid() {\n\t\treturn nil",
	},
	{
		name: "a job that is deleted keeps its key", file: "services/job-api/internal/writes/jobkey.go",
		from: "case !standing.Deleted:",
		to:   "case !standing.Deleted || standing.Key != \"\":",
	},
	{
		name: "entries of a job that never was are fired", file: "services/scheduler-worker/prepare.go",
		from: "if found && row.IsVoid() {",
		to:   "if found && row.IsVoid() && row.Status == \"\" {",
	},
	{
		name: "an execution does not enter", file: "libs/overlap/overlap.go",
		from: "if err = jobs.SwapRuns(ctx, jobID, runs, next); !errors.Is(err, jobstore.ErrConflict) {",
		to:   "if !errors.Is(err, jobstore.ErrConflict) {",
	},
	{
		name: "a retry is not in progress", file: "services/retry-manager/service.go",
		from: "if e := &entries[i]; e.Alone {",
		to:   "if e := &entries[i]; e.Alone && e.Attempt == 1 {",
	},
	{
		name: "an execution is over when its attempt has failed", file: "libs/overlap/overlap.go",
		from: "case o != nil && (!o.Failed() || !o.Retryable):",
		to:   "case o != nil:",
	},
	{
		name: "another attempt goes to the end of the line", file: "libs/overlap/overlap.go",
		from: "before, _ := ahead(runs, e.ExecutionID)",
		to:   "before, _ := ahead(runs, \"\")",
	},
	{
		name: "what waits in line does not ask for its turn", file: "services/scheduler-worker/overlaps.go",
		from: "if before != \"\" {\n\t\treturn",
		to:   "if before == \"-\" {\n\t\treturn",
	},
	{
		name: "more wait in line than may", file: "libs/overlap/overlap.go",
		from: "case !entered && len(p.Before) > most:",
		to:   "case !entered && len(p.Before) > most+min(most, 1):", first: 100,
	},
	{
		name: "an execution whose place another took goes on", file: "libs/job/state.go",
		from: "return e.Alone && e.NominalAt.Before(s.StoppedBefore)",
		to:   "return e.Alone && e.NominalAt.Before(s.EffectiveAt) && e.NominalAt.Before(s.StoppedBefore)",
	},
	{
		name: "an occurrence takes its own place", file: "services/scheduler-worker/overlaps.go",
		from: "j.StoppedBefore = t.entry.NominalAt\n",
		to:   "j.StoppedBefore = t.entry.NominalAt.Add(time.Millisecond)\n",
	},
	{
		name: "a call carries the id of its execution in the place of its key", file: "services/executor/webhook.go",
		from: "f.Target.IdempotencyKey(&f.Entry)",
		to:   "f.ExecutionID",
	},
	{
		name: "cancel_other does not wait for the end", file: "services/scheduler-worker/late.go",
		from: "waits = before != \"\"",
		to:   "waits = before == \"-\"", first: 100,
	},
	{
		name: "a task comes without the progress of the worker before", file: "services/job-api/internal/tasks/progress.go",
		from: "if !t.Again {",
		to:   "if t != nil {",
	},
	{
		name: "a heartbeat that comes late takes progress back", file: "services/job-api/internal/tasks/progress.go",
		from: ", Version: l.Begun.UnixMicro() + sequence}",
		to:   "}\n\t_ = sequence", first: 300,
	},
	{
		name: "a stop while a task waits is not seen", file: "services/job-api/internal/tasks/poll.go",
		from: "case err != nil, stop != nil, ts.deps.Clock.Since(checked) > checkLimit:",
		to:   "case err != nil, stop == nil && ts == nil:",
	},
	{
		name: "a worker is not told to stop", file: "services/job-api/internal/tasks/ends.go",
		from: "renew(l, stopped(stops, l), now)",
		to:   "renew(l, stops == nil, now)", first: 65,
	},
	{
		name: "who was told to stop keeps its task", file: "services/job-api/internal/tasks/ends.go",
		from: "until = l.StoppedAt.Add(grace)",
		to:   "_ = grace", first: 140,
	},
	{
		name: "an end is answered that is not on the log", file: "services/job-api/internal/tasks/tasks.go",
		from: "if stands != nil && stands.Fence == l.Fence {",
		to:   "if stands != nil && stands.Fence == l.Fence && !done[0].Stored {",
	},
	{
		name: "a silent worker keeps its task", file: "services/job-api/internal/tasks/tasks.go",
		from: "ts.deps.Queue.Lapsed(ctx, p, now.Add(-clock.MaxDifference))",
		to:   "ts.deps.Queue.Lapsed(ctx, p, now.Add(-time.Hour-clock.MaxDifference))", first: 85,
	},
	{
		name: "redrives of all do not mark what they took", file: "services/bucket-loader/internal/bulk/redrive.go",
		from: "if slices.Contains(rest.Sources, e.Note.Source) {",
		to:   "if slices.Contains(rest.Sources, e.Note.Source) || len(entries) > 0 {",
	},
	{
		name: "a redrive of all goes by its own clock", file: "services/bucket-loader/internal/bulk/redrive.go",
		from: "to = to.Add(clock.MaxDifference)",
		to:   "to = to.Add(-clock.MaxDifference)",
	},
}
