package servers

import (
	"context"
	"maps"
	"slices"

	"github.com/minutehand/minutehand/libs/jobstore"
)

// PutItem implements jobstore.Lists.
func (c *Cold) PutItem(_ context.Context, list string, i jobstore.Item) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lists[list] == nil {
		c.lists[list] = map[string][]byte{}
	}
	c.lists[list][i.Name] = slices.Clone(i.Value)
	return nil
}

// RemoveItem implements jobstore.Lists.
func (c *Cold) RemoveItem(_ context.Context, list, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lists[list], name)
	return nil
}

// Items implements jobstore.Lists.
func (c *Cold) Items(_ context.Context, list, after string, limit int) (items []jobstore.Item, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.lists[list])) {
		if name > after && len(items) < limit {
			items = append(items, jobstore.Item{Name: name, Value: slices.Clone(c.lists[list][name])})
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
