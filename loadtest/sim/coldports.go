package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

var (
	opGet           = newOp("cold", "Get", Read, often)
	opGetMany       = newOp("cold", "GetMany", Read, often)
	opGetSerial     = newOp("cold", "GetSerial", Read, seldom)
	opCreate        = newOp("cold", "Create", WriteSerial, seldom)
	opReplace       = newOp("cold", "Replace", WriteSerial, seldom)
	opPutDefinition = newOp("cold", "PutDefinition", Write, seldom)
	opDefinition    = newOp("cold", "Definition", Read, seldom)
	opClaimKey      = newOp("cold", "ClaimKey", Write, seldom)
	opRuns          = newOp("cold", "Runs", Read, seldom)
	opHoldJobKey    = newOp("cold", "HoldJobKey", WriteSerial, seldom)
	opJobOfKey      = newOp("cold", "JobOfKey", Read, seldom)
	opSwapRuns      = newOp("cold", "SwapRuns", WriteSerial, seldom)
	opFinishKey     = newOp("cold", "FinishKey", Write, seldom)
)

type jobs struct{ *client }

func (c jobs) Get(ctx context.Context, id string) (job.Job, error) {
	return through(ctx, c.p, opGet, id, func(ctx context.Context) (job.Job, error) { return c.p.w.cold.Get(ctx, id) })
}

func (c jobs) GetMany(ctx context.Context, ids []string) (map[string]*job.Job, error) {
	return through(ctx, c.p, opGetMany, first(ids, same), func(ctx context.Context) (map[string]*job.Job, error) {
		c.p.w.hasRead(c.p, ids)
		return c.p.w.cold.GetMany(ctx, ids)
	})
}

func (c jobs) GetSerial(ctx context.Context, id string) (job.Job, error) {
	return through(ctx, c.p, opGetSerial, id, func(ctx context.Context) (job.Job, error) { return c.p.w.cold.GetSerial(ctx, id) })
}

func (c jobs) Create(ctx context.Context, j job.Job, exclusive bool) error {
	_, err := knowing(ctx, c.p, opCreate, j.ID, func(ctx context.Context, f Fault) (struct{}, error) {
		return struct{}{}, c.p.w.cold.CreateUnseen(ctx, j, exclusive, exclusive && f.Kind == Unseen)
	})
	return err
}

func (c jobs) CreateMany(ctx context.Context, list []job.Job) error {
	return do(ctx, c.p, opCreate, first(list, func(j job.Job) string { return j.ID }), func(ctx context.Context) error {
		return c.p.w.cold.CreateMany(ctx, list)
	})
}

func (c jobs) Replace(ctx context.Context, j job.Job) error {
	_, err := knowing(ctx, c.p, opReplace, j.ID, func(ctx context.Context, f Fault) (struct{}, error) {
		return struct{}{}, c.p.w.cold.ReplaceUnseen(ctx, j, f.Kind == Unseen)
	})
	return err
}

func (c jobs) PutDefinition(ctx context.Context, id string, d job.Definition) error {
	return do(ctx, c.p, opPutDefinition, id, func(ctx context.Context) error { return c.p.w.cold.PutDefinition(ctx, id, d) })
}

func (c jobs) Definition(ctx context.Context, id, definition string) (job.Definition, time.Time, error) {
	v, err := through(ctx, c.p, opDefinition, id, func(ctx context.Context) (pair[job.Definition, time.Time], error) {
		d, endsAt, err := c.p.w.cold.Definition(ctx, id, definition)
		return pair[job.Definition, time.Time]{d, endsAt}, err
	})
	return v.a, v.b, err
}

func (c jobs) Definitions(ctx context.Context, id, before string, limit int) ([]job.Definition, error) {
	return c.p.w.cold.Definitions(ctx, id, before, limit)
}

func (c jobs) Runs(ctx context.Context, id string) ([]job.Locator, error) {
	return through(ctx, c.p, opRuns, id, func(ctx context.Context) ([]job.Locator, error) { return c.p.w.cold.Runs(ctx, id) })
}

func (c jobs) SwapRuns(ctx context.Context, id string, old, runs []job.Locator) error {
	old, runs = slices.Clone(old), slices.Clone(runs)
	return do(ctx, c.p, opSwapRuns, id, func(ctx context.Context) error { return c.p.w.cold.SwapRuns(ctx, id, old, runs) })
}

func (c jobs) HoldJobKey(ctx context.Context, j job.Job, gone string) (string, error) {
	return through(ctx, c.p, opHoldJobKey, j.ID, func(ctx context.Context) (string, error) { return c.p.w.cold.HoldJobKey(ctx, j, gone) })
}

func (c jobs) JobOfKey(ctx context.Context, tenant job.Tenant, key string) (string, error) {
	return through(ctx, c.p, opJobOfKey, key, func(ctx context.Context) (string, error) { return c.p.w.cold.JobOfKey(ctx, tenant, key) })
}

func (c jobs) List(ctx context.Context, tenant job.Tenant, cursor string, limit int) ([]job.Job, string, error) {
	return c.p.w.cold.List(ctx, tenant, cursor, limit)
}

func (c jobs) Remove(ctx context.Context, tenant job.Tenant, id string) error {
	return c.p.w.cold.Remove(ctx, tenant, id)
}

func (c jobs) RemoveListings(ctx context.Context, tenant job.Tenant) error {
	return c.p.w.cold.RemoveListings(ctx, tenant)
}

func (c jobs) ClaimKey(ctx context.Context, tenant job.Tenant, key string, claim jobstore.Claim) (jobstore.Claim, bool, error) {
	v, err := through(ctx, c.p, opClaimKey, key, func(ctx context.Context) (pair[jobstore.Claim, bool], error) {
		standing, won, err := c.p.w.cold.ClaimKey(ctx, tenant, key, claim)
		return pair[jobstore.Claim, bool]{standing, won}, err
	})
	return v.a, v.b, err
}

func (c jobs) FinishKey(ctx context.Context, tenant job.Tenant, key string, a jobstore.Answer) error {
	return do(ctx, c.p, opFinishKey, key, func(ctx context.Context) error { return c.p.w.cold.FinishKey(ctx, tenant, key, a) })
}

var (
	opSetting     = newOp("cold", "Setting", Read, always)
	opSwapSetting = newOp("cold", "SwapSetting", Write, seldom)
	opPutItem     = newOp("cold", "PutItem", Write, often)
	opItems       = newOp("cold", "Items", Read, often)
	opRemoveItem  = newOp("cold", "RemoveItem", Write, seldom)
)

type settings struct{ *client }

func (c settings) Setting(ctx context.Context, name string) ([]byte, error) {
	return through(ctx, c.p, opSetting, c.p.name, func(ctx context.Context) ([]byte, error) { return c.p.w.cold.Setting(ctx, name) })
}

func (c settings) SwapSetting(ctx context.Context, name string, old, value []byte) error {
	return do(ctx, c.p, opSwapSetting, name, func(ctx context.Context) error { return c.p.w.cold.SwapSetting(ctx, name, old, value) })
}

func (c settings) PutItem(ctx context.Context, list string, i jobstore.Item) error {
	began := c.p.w.cold.BeginWrite()
	i.Value = append([]byte{}, i.Value...)
	return do(ctx, c.p, opPutItem, list+"/"+i.Name, func(context.Context) error {
		c.p.w.cold.WriteItem(list, i, began)
		return nil
	})
}

func (c settings) RemoveItem(ctx context.Context, list, name string, version int64) error {
	began := c.p.w.cold.BeginWrite()
	return do(ctx, c.p, opRemoveItem, list+"/"+name, func(context.Context) error {
		c.p.w.cold.WriteItem(list, jobstore.Item{Name: name, Version: version}, began)
		return nil
	})
}

func (c settings) Items(ctx context.Context, list, after string, limit int) ([]jobstore.Item, error) {
	return through(ctx, c.p, opItems, list, func(ctx context.Context) ([]jobstore.Item, error) { return c.p.w.cold.Items(ctx, list, after, limit) })
}

func (c settings) RemoveList(ctx context.Context, list string) error {
	return c.p.w.cold.RemoveList(ctx, list)
}

var (
	opPut       = newOp("cold", "Put", WriteMany, often)
	opMarkDone  = newOp("cold", "MarkDone", WriteMany, often)
	opDefer     = newOp("cold", "Defer", Write, rarely)
	opDecide    = newOp("cold", "Decide", Write, seldom)
	opRow       = newOp("cold", "Row", Read, often)
	opRows      = newOp("cold", "Rows", Read, rarely)
	opScan      = newOp("cold", "Scan", Read, often)
	opHeads     = newOp("cold", "Heads", Read, always)
	opFirstOpen = newOp("cold", "FirstOpen", Read, always)
	opLowWater  = newOp("cold", "LowWater", Read, seldom)
	opClose     = newOp("cold", "Close", Write, seldom)
)

type pending struct{ *client }

func (c pending) Put(ctx context.Context, entries []job.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	entries = slices.Clone(entries)
	sent := time.Now()
	if c.p.kind == "bucket-loader" { // its audit of the schedules
		c.p.w.mends(entries)
	}
	return write(ctx, c.p, opPut, entries, entryKey, func(_ context.Context, entries []job.Entry) error {
		for i := range entries {
			c.p.w.did(c.p, writes, &entries[i], entries[i].NominalAt)
		}
		c.p.w.puts(c.p, entries)
		return c.p.w.cold.PutAt(sent, entries)
	})
}

func (c pending) MarkDone(ctx context.Context, locators []job.Locator) error {
	locators = slices.Clone(locators)
	return write(ctx, c.p, opMarkDone, locators, locatorKey, c.p.w.cold.MarkDone)
}

func (c pending) Defer(ctx context.Context, l job.Locator, to time.Time) error {
	return do(ctx, c.p, opDefer, locatorKey(l), func(ctx context.Context) error { return c.p.w.cold.Defer(ctx, l, to) })
}

func (c pending) Decide(ctx context.Context, l job.Locator, d job.Decision) error {
	return do(ctx, c.p, opDecide, locatorKey(l), func(ctx context.Context) error {
		if ref, err := job.ParseExecutionID(l.ExecutionID); err == nil {
			c.p.w.did(c.p, writes, &job.Entry{Locator: l, JobID: ref.JobID, Trigger: ref.Trigger}, ref.NominalAt)
		}
		return c.p.w.cold.Decide(ctx, l, d)
	})
}

func (c pending) Row(ctx context.Context, l job.Locator) (job.PendingRow, error) {
	return through(ctx, c.p, opRow, locatorKey(l), func(ctx context.Context) (job.PendingRow, error) { return c.p.w.cold.Row(ctx, l) })
}

func (c pending) Rows(ctx context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error) {
	return through(ctx, c.p, opRows, first(locators, locatorKey), func(ctx context.Context) (map[job.Locator]job.PendingRow, error) {
		return c.p.w.cold.Rows(ctx, locators)
	})
}

func (c pending) Scan(
	ctx context.Context, partition int, minute int64, after *job.Locator, limit int,
) ([]job.PendingRow, error) {
	return through(ctx, c.p, opScan, fmt.Sprintf("p%d/%d", partition, minute), func(ctx context.Context) ([]job.PendingRow, error) {
		if after == nil {
			c.p.saw(partition, minute, minute+1)
		}
		return c.p.w.cold.Scan(ctx, partition, minute, after, limit)
	})
}

func (c pending) Heads(ctx context.Context, partition int, from, to int64, limit int) ([]job.PendingRow, error) {
	return through(ctx, c.p, opHeads, fmt.Sprintf("p%d/%d", partition, from), func(ctx context.Context) ([]job.PendingRow, error) {
		return c.p.w.cold.Heads(ctx, partition, from, to, limit)
	})
}

func (c pending) FirstOpen(ctx context.Context, partition int, from, to int64) (int64, bool, error) {
	v, err := through(ctx, c.p, opFirstOpen, fmt.Sprintf("p%d", partition), func(ctx context.Context) (pair[int64, bool], error) {
		minute, ok, err := c.p.w.cold.FirstOpen(ctx, partition, from, to)
		if !ok {
			c.p.saw(partition, from, to)
		} else {
			c.p.saw(partition, from, minute)
		}
		return pair[int64, bool]{minute, ok}, err
	})
	return v.a, v.b, err
}

func (c pending) LowWater(ctx context.Context, partition int) (int64, error) {
	return through(ctx, c.p, opLowWater, fmt.Sprintf("p%d", partition), func(ctx context.Context) (int64, error) {
		return c.p.w.cold.LowWater(ctx, partition)
	})
}

func (c pending) Close(ctx context.Context, partition int, minute int64) error {
	closing := c.p.closes()
	return do(ctx, c.p, opClose, fmt.Sprintf("p%d/%d", partition, minute), func(context.Context) error {
		return c.p.w.cold.CloseAnd(partition, minute, closing)
	})
}

var (
	opRecord        = newOp("cold", "Record", WriteMany, often)
	opPutDeadLetter = newOp("cold", "PutDeadLetter", Write, seldom)
)

type history struct{ *client }

func (c history) Record(ctx context.Context, events []jobstore.Recorded) error {
	events = slices.Clone(events)
	return write(ctx, c.p, opRecord, events, func(e jobstore.Recorded) string { return locatorKey(e.Entry.Locator) }, c.p.w.cold.Record)
}

func (c history) Executions(
	ctx context.Context, of jobstore.Of, before jobstore.Cursor, oldest time.Time, limit int,
) ([]job.Event, error) {
	return c.p.w.cold.Executions(ctx, of, before, oldest, limit)
}

func (c history) Execution(ctx context.Context, id string) ([]job.Event, error) {
	return c.p.w.cold.Execution(ctx, id)
}

func (c history) Forget(ctx context.Context, of jobstore.Of) error { return c.p.w.cold.Forget(ctx, of) }

func (c history) RemoveDeadLetters(ctx context.Context, tenant job.Tenant) error {
	return c.p.w.cold.RemoveDeadLetters(ctx, tenant)
}

func (c history) PutDeadLetter(ctx context.Context, d job.DeadLetter) error {
	return do(ctx, c.p, opPutDeadLetter, d.Event.Entry.ExecutionID, func(ctx context.Context) error {
		return c.p.w.cold.PutDeadLetter(ctx, d)
	})
}

func (c history) MarkRedriven(ctx context.Context, d job.DeadLetter, id string) error {
	return c.p.w.cold.MarkRedriven(ctx, d, id)
}

func (c history) DeadLetters(ctx context.Context, tenant job.Tenant, cursor string, limit int) ([]job.DeadLetter, string, error) {
	return c.p.w.cold.DeadLetters(ctx, tenant, cursor, limit)
}
