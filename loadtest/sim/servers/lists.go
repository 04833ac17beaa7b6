package servers

import (
	"context"
	"maps"
	"slices"

	"github.com/minutehand/minutehand/libs/jobstore"
)

// item is an item of a list, nil for one that was removed, and the number of the write that stands.
type item struct {
	value          []byte
	began, version int64
}

// BeginWrite returns the number of a write that begins now.
func (c *Cold) BeginWrite() int64 { return c.writes.Add(1) }

// PutItem implements jobstore.Lists.
func (c *Cold) PutItem(_ context.Context, list string, i jobstore.Item) error {
	c.WriteItem(list, jobstore.Item{Name: i.Name, Value: append([]byte{}, i.Value...), Version: i.Version}, c.BeginWrite())
	return nil
}

// RemoveItem implements jobstore.Lists.
func (c *Cold) RemoveItem(_ context.Context, list, name string, version int64) error {
	c.WriteItem(list, jobstore.Item{Name: name, Version: version}, c.BeginWrite())
	return nil
}

// WriteItem is PutItem, or without a value RemoveItem, for a write that has begun.
func (c *Cold) WriteItem(list string, i jobstore.Item, began int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i.Value == nil && i.Version != 0 {
		if c.lists[list][i.Name].version <= i.Version {
			delete(c.lists[list], i.Name) // whatever is written after that, or on its way, may stand
		}
		return
	}
	if c.lists[list] == nil {
		c.lists[list] = map[string]item{}
	}
	stands := c.lists[list][i.Name]
	later := began >= stands.began
	if i.Version != 0 && stands.version != 0 {
		later = i.Version >= stands.version
	}
	if later {
		c.lists[list][i.Name] = item{i.Value, max(began, stands.began), i.Version}
	}
}

// Items implements jobstore.Lists.
func (c *Cold) Items(_ context.Context, list, after string, limit int) (items []jobstore.Item, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.lists[list])) {
		if x := c.lists[list][name]; name > after && x.value != nil && len(items) < limit {
			items = append(items, jobstore.Item{Name: name, Value: slices.Clone(x.value)})
		}
	}
	return items, nil
}

// RemoveList implements jobstore.Lists.
func (c *Cold) RemoveList(_ context.Context, list string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lists, list)
	return nil
}
