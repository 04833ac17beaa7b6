package metered

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

type jobsPort struct {
	jobstore.Jobs
	m *Meter
}

// Jobs measures a port.
func (m *Meter) Jobs(p jobstore.Jobs) jobstore.Jobs { return &jobsPort{p, m} }

func (x *jobsPort) Get(ctx context.Context, jobID string) (a job.Job, err error) {
	defer func(began time.Time) { x.m.done("jobs", "Get", began, err) }(time.Now())
	a, err = x.Jobs.Get(ctx, jobID)
	return a, err
}

func (x *jobsPort) GetMany(ctx context.Context, jobIDs []string) (a map[string]*job.Job, err error) {
	defer func(began time.Time) { x.m.done("jobs", "GetMany", began, err) }(time.Now())
	a, err = x.Jobs.GetMany(ctx, jobIDs)
	return a, err
}

func (x *jobsPort) GetSerial(ctx context.Context, jobID string) (a job.Job, err error) {
	defer func(began time.Time) { x.m.done("jobs", "GetSerial", began, err) }(time.Now())
	a, err = x.Jobs.GetSerial(ctx, jobID)
	return a, err
}

func (x *jobsPort) Create(ctx context.Context, j job.Job, exclusive bool) (err error) {
	defer func(began time.Time) { x.m.done("jobs", "Create", began, err) }(time.Now())
	err = x.Jobs.Create(ctx, j, exclusive)
	return err
}

func (x *jobsPort) CreateMany(ctx context.Context, jobs []job.Job) (err error) {
	defer func(began time.Time) { x.m.done("jobs", "CreateMany", began, err) }(time.Now())
	err = x.Jobs.CreateMany(ctx, jobs)
	return err
}

func (x *jobsPort) Replace(ctx context.Context, j job.Job) (err error) {
	defer func(began time.Time) { x.m.done("jobs", "Replace", began, err) }(time.Now())
	err = x.Jobs.Replace(ctx, j)
	return err
}

func (x *jobsPort) PutDefinition(ctx context.Context, jobID string, d job.Definition) (err error) {
	defer func(began time.Time) { x.m.done("jobs", "PutDefinition", began, err) }(time.Now())
	err = x.Jobs.PutDefinition(ctx, jobID, d)
	return err
}

func (x *jobsPort) Definition(ctx context.Context, jobID, definitionID string) (a job.Definition, b time.Time, err error) {
	defer func(began time.Time) { x.m.done("jobs", "Definition", began, err) }(time.Now())
	a, b, err = x.Jobs.Definition(ctx, jobID, definitionID)
	return a, b, err
}

func (x *jobsPort) Definitions(ctx context.Context, jobID, before string, limit int) (a []job.Definition, err error) {
	defer func(began time.Time) { x.m.done("jobs", "Definitions", began, err) }(time.Now())
	a, err = x.Jobs.Definitions(ctx, jobID, before, limit)
	return a, err
}

func (x *jobsPort) Runs(ctx context.Context, jobID string) (a []job.Locator, err error) {
	defer func(began time.Time) { x.m.done("jobs", "Runs", began, err) }(time.Now())
	a, err = x.Jobs.Runs(ctx, jobID)
	return a, err
}

func (x *jobsPort) SwapRuns(ctx context.Context, jobID string, old, runs []job.Locator) (err error) {
	defer func(began time.Time) { x.m.done("jobs", "SwapRuns", began, err) }(time.Now())
	err = x.Jobs.SwapRuns(ctx, jobID, old, runs)
	return err
}

func (x *jobsPort) HoldJobKey(ctx context.Context, j job.Job, gone string) (holder string, err error) {
	defer func(began time.Time) { x.m.done("jobs", "HoldJobKey", began, err) }(time.Now())
	holder, err = x.Jobs.HoldJobKey(ctx, j, gone)
	return holder, err
}

func (x *jobsPort) JobOfKey(ctx context.Context, tenant job.Tenant, key string) (jobID string, err error) {
	defer func(began time.Time) { x.m.done("jobs", "JobOfKey", began, err) }(time.Now())
	jobID, err = x.Jobs.JobOfKey(ctx, tenant, key)
	return jobID, err
}

func (x *jobsPort) List(ctx context.Context, tenant job.Tenant, cursor string, limit int) (a []job.Job, b string, err error) {
	defer func(began time.Time) { x.m.done("jobs", "List", began, err) }(time.Now())
	a, b, err = x.Jobs.List(ctx, tenant, cursor, limit)
	return a, b, err
}

func (x *jobsPort) Remove(ctx context.Context, tenant job.Tenant, jobID string) (err error) {
	defer func(began time.Time) { x.m.done("jobs", "Remove", began, err) }(time.Now())
	err = x.Jobs.Remove(ctx, tenant, jobID)
	return err
}

func (x *jobsPort) RemoveListings(ctx context.Context, tenant job.Tenant) (err error) {
	defer func(began time.Time) { x.m.done("jobs", "RemoveListings", began, err) }(time.Now())
	err = x.Jobs.RemoveListings(ctx, tenant)
	return err
}

func (x *jobsPort) ClaimKey(ctx context.Context, tenant job.Tenant, key string, c jobstore.Claim) (a jobstore.Claim, b bool, err error) {
	defer func(began time.Time) { x.m.done("jobs", "ClaimKey", began, err) }(time.Now())
	a, b, err = x.Jobs.ClaimKey(ctx, tenant, key, c)
	return a, b, err
}

func (x *jobsPort) FinishKey(ctx context.Context, tenant job.Tenant, key string, answer jobstore.Answer) (err error) {
	defer func(began time.Time) { x.m.done("jobs", "FinishKey", began, err) }(time.Now())
	err = x.Jobs.FinishKey(ctx, tenant, key, answer)
	return err
}

type pendingPort struct {
	jobstore.Pending
	m *Meter
}

// Pending measures a port.
func (m *Meter) Pending(p jobstore.Pending) jobstore.Pending { return &pendingPort{p, m} }

func (x *pendingPort) Put(ctx context.Context, entries []job.Entry) (err error) {
	defer func(began time.Time) { x.m.done("pending", "Put", began, err) }(time.Now())
	err = x.Pending.Put(ctx, entries)
	return err
}

func (x *pendingPort) MarkDone(ctx context.Context, locators []job.Locator) (err error) {
	defer func(began time.Time) { x.m.done("pending", "MarkDone", began, err) }(time.Now())
	err = x.Pending.MarkDone(ctx, locators)
	return err
}

func (x *pendingPort) Defer(ctx context.Context, l job.Locator, to time.Time) (err error) {
	defer func(began time.Time) { x.m.done("pending", "Defer", began, err) }(time.Now())
	err = x.Pending.Defer(ctx, l, to)
	return err
}

func (x *pendingPort) Decide(ctx context.Context, l job.Locator, d job.Decision) (err error) {
	defer func(began time.Time) { x.m.done("pending", "Decide", began, err) }(time.Now())
	err = x.Pending.Decide(ctx, l, d)
	return err
}

func (x *pendingPort) Row(ctx context.Context, l job.Locator) (a job.PendingRow, err error) {
	defer func(began time.Time) { x.m.done("pending", "Row", began, err) }(time.Now())
	a, err = x.Pending.Row(ctx, l)
	return a, err
}

func (x *pendingPort) Rows(ctx context.Context, locators []job.Locator) (a map[job.Locator]job.PendingRow, err error) {
	defer func(began time.Time) { x.m.done("pending", "Rows", began, err) }(time.Now())
	a, err = x.Pending.Rows(ctx, locators)
	return a, err
}

func (x *pendingPort) Scan(ctx context.Context, partition int, minute int64, after *job.Locator, limit int) (a []job.PendingRow, err error) {
	defer func(began time.Time) { x.m.done("pending", "Scan", began, err) }(time.Now())
	a, err = x.Pending.Scan(ctx, partition, minute, after, limit)
	return a, err
}

func (x *pendingPort) Heads(ctx context.Context, partition int, from, to int64, limit int) (a []job.PendingRow, err error) {
	defer func(began time.Time) { x.m.done("pending", "Heads", began, err) }(time.Now())
	a, err = x.Pending.Heads(ctx, partition, from, to, limit)
	return a, err
}

func (x *pendingPort) FirstOpen(ctx context.Context, partition int, from, to int64) (a int64, b bool, err error) {
	defer func(began time.Time) { x.m.done("pending", "FirstOpen", began, err) }(time.Now())
	a, b, err = x.Pending.FirstOpen(ctx, partition, from, to)
	return a, b, err
}

func (x *pendingPort) LowWater(ctx context.Context, partition int) (a int64, err error) {
	defer func(began time.Time) { x.m.done("pending", "LowWater", began, err) }(time.Now())
	a, err = x.Pending.LowWater(ctx, partition)
	return a, err
}

func (x *pendingPort) Close(ctx context.Context, partition int, minute int64) (err error) {
	defer func(began time.Time) { x.m.done("pending", "Close", began, err) }(time.Now())
	err = x.Pending.Close(ctx, partition, minute)
	return err
}

type historyPort struct {
	jobstore.History
	m *Meter
}

// History measures a port.
func (m *Meter) History(p jobstore.History) jobstore.History { return &historyPort{p, m} }

func (x *historyPort) Record(ctx context.Context, events []jobstore.Recorded) (err error) {
	defer func(began time.Time) { x.m.done("history", "Record", began, err) }(time.Now())
	err = x.History.Record(ctx, events)
	return err
}

func (x *historyPort) Executions(ctx context.Context, of jobstore.Of, before jobstore.Cursor, oldest time.Time, limit int) (a []job.Event, err error) {
	defer func(began time.Time) { x.m.done("history", "Executions", began, err) }(time.Now())
	a, err = x.History.Executions(ctx, of, before, oldest, limit)
	return a, err
}

func (x *historyPort) Execution(ctx context.Context, executionID string) (a []job.Event, err error) {
	defer func(began time.Time) { x.m.done("history", "Execution", began, err) }(time.Now())
	a, err = x.History.Execution(ctx, executionID)
	return a, err
}

func (x *historyPort) Forget(ctx context.Context, of jobstore.Of) (err error) {
	defer func(began time.Time) { x.m.done("history", "Forget", began, err) }(time.Now())
	err = x.History.Forget(ctx, of)
	return err
}

func (x *historyPort) RemoveDeadLetters(ctx context.Context, tenant job.Tenant) (err error) {
	defer func(began time.Time) { x.m.done("history", "RemoveDeadLetters", began, err) }(time.Now())
	err = x.History.RemoveDeadLetters(ctx, tenant)
	return err
}

func (x *historyPort) PutDeadLetter(ctx context.Context, d job.DeadLetter) (err error) {
	defer func(began time.Time) { x.m.done("history", "PutDeadLetter", began, err) }(time.Now())
	err = x.History.PutDeadLetter(ctx, d)
	return err
}

func (x *historyPort) MarkRedriven(ctx context.Context, d job.DeadLetter, executionID string) (err error) {
	defer func(began time.Time) { x.m.done("history", "MarkRedriven", began, err) }(time.Now())
	err = x.History.MarkRedriven(ctx, d, executionID)
	return err
}

func (x *historyPort) DeadLetters(ctx context.Context, tenant job.Tenant, cursor string, limit int) (a []job.DeadLetter, b string, err error) {
	defer func(began time.Time) { x.m.done("history", "DeadLetters", began, err) }(time.Now())
	a, b, err = x.History.DeadLetters(ctx, tenant, cursor, limit)
	return a, b, err
}

type settingsPort struct {
	jobstore.Settings
	m *Meter
}

// Settings measures a port.
func (m *Meter) Settings(p jobstore.Settings) jobstore.Settings { return &settingsPort{p, m} }

func (x *settingsPort) Setting(ctx context.Context, name string) (a []byte, err error) {
	defer func(began time.Time) { x.m.done("settings", "Setting", began, err) }(time.Now())
	a, err = x.Settings.Setting(ctx, name)
	return a, err
}

func (x *settingsPort) SwapSetting(ctx context.Context, name string, old, value []byte) (err error) {
	defer func(began time.Time) { x.m.done("settings", "SwapSetting", began, err) }(time.Now())
	err = x.Settings.SwapSetting(ctx, name, old, value)
	return err
}

func (x *settingsPort) PutItem(ctx context.Context, list string, i jobstore.Item) (err error) {
	defer func(began time.Time) { x.m.done("settings", "PutItem", began, err) }(time.Now())
	err = x.Settings.PutItem(ctx, list, i)
	return err
}

func (x *settingsPort) RemoveItem(ctx context.Context, list, name string, version int64) (err error) {
	defer func(began time.Time) { x.m.done("settings", "RemoveItem", began, err) }(time.Now())
	err = x.Settings.RemoveItem(ctx, list, name, version)
	return err
}

func (x *settingsPort) Items(ctx context.Context, list, after string, limit int) (a []jobstore.Item, err error) {
	defer func(began time.Time) { x.m.done("settings", "Items", began, err) }(time.Now())
	a, err = x.Settings.Items(ctx, list, after, limit)
	return a, err
}

func (x *settingsPort) RemoveList(ctx context.Context, list string) (err error) {
	defer func(began time.Time) { x.m.done("settings", "RemoveList", began, err) }(time.Now())
	err = x.Settings.RemoveList(ctx, list)
	return err
}
