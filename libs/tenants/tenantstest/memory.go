// Package tenantstest has the store behind a directory of tenants for tests: in memory, so that it works in a bubble.
package tenantstest

import (
	"bytes"
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/tenants"
)

// Memory is a store of settings.
type Memory struct {
	// Reads counts the settings that were read.
	Reads atomic.Int64

	mu    sync.Mutex
	rows  map[string][]byte
	lists map[string]map[string][]byte
}

var _ jobstore.Settings = (*Memory)(nil)

// Setting implements jobstore.Settings.
func (m *Memory) Setting(_ context.Context, name string) ([]byte, error) {
	m.Reads.Add(1)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rows[name], nil
}

// SwapSetting implements jobstore.Settings.
func (m *Memory) SwapSetting(_ context.Context, name string, old, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !bytes.Equal(m.rows[name], old) {
		return jobstore.ErrConflict
	}
	if m.rows == nil {
		m.rows = map[string][]byte{}
	}
	if m.rows[name] = value; value == nil {
		delete(m.rows, name)
	}
	return nil
}

// PutItem implements jobstore.Lists. Nobody writes items with versions into it.
func (m *Memory) PutItem(_ context.Context, list string, i jobstore.Item) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lists == nil {
		m.lists = map[string]map[string][]byte{}
	}
	if m.lists[list] == nil {
		m.lists[list] = map[string][]byte{}
	}
	m.lists[list][i.Name] = i.Value
	return nil
}

// RemoveItem implements jobstore.Lists.
func (m *Memory) RemoveItem(_ context.Context, list, name string, _ int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.lists[list], name)
	return nil
}

// Items implements jobstore.Lists.
func (m *Memory) Items(_ context.Context, list, after string, limit int) (items []jobstore.Item, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.lists[list])) {
		if name > after && len(items) < limit {
			items = append(items, jobstore.Item{Name: name, Value: m.lists[list][name]})
		}
	}
	return items, nil
}

// RemoveList implements jobstore.Lists.
func (m *Memory) RemoveList(_ context.Context, list string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.lists, list)
	return nil
}

// entries takes the entries of changes, and forgets them.
type entries struct{ jobstore.Pending }

func (entries) Put(context.Context, []job.Entry) error { return nil }

func (entries) Rows(context.Context, []job.Locator) (map[job.Locator]job.PendingRow, error) {
	return nil, nil
}

// Directory returns a directory whose changes nobody is told of.
func Directory(settings jobstore.Settings) *tenants.Directory {
	return tenants.New(settings, jobchange.Recorder{
		Pending: entries{}, Entropy: rand.Reader, Partitions: 1, Grace: time.Hour,
	}, clock.Clock{})
}
