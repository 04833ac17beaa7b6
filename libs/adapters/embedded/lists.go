package embedded

import (
	"context"
	"fmt"
	"slices"

	"github.com/minutehand/minutehand/libs/jobstore"
)

func itemKey(list, name string) []byte { return append(text([]byte{tableList}, list), name...) }

// PutItem implements jobstore.Lists.
func (s *Settings) PutItem(_ context.Context, list string, i jobstore.Item) error {
	if err := s.db.set(itemKey(list, i.Name), i.Value); err != nil {
		return fmt.Errorf("embedded: put an item: %w", err)
	}
	return nil
}

// RemoveItem implements jobstore.Lists.
func (s *Settings) RemoveItem(_ context.Context, list, name string) error {
	if err := s.db.remove(itemKey(list, name)); err != nil {
		return fmt.Errorf("embedded: remove an item: %w", err)
	}
	return nil
}

// Items implements jobstore.Lists.
func (s *Settings) Items(ctx context.Context, list, last string, limit int) (items []jobstore.Item, err error) {
	begin := itemKey(list, "")
	lower := begin
	if last != "" {
		lower = append(itemKey(list, last), 0)
	}
	err = s.db.scan(ctx, lower, after(begin), func(k, v []byte) (bool, error) {
		items = append(items, jobstore.Item{Name: string(k[len(begin):]), Value: slices.Clone(v)})
		return len(items) < limit, nil
	})
	if err != nil {
		return nil, fmt.Errorf("embedded: read a list: %w", err)
	}
	return items, nil
}

// RemoveList implements jobstore.Lists.
func (s *Settings) RemoveList(_ context.Context, list string) error {
	begin := itemKey(list, "")
	b := s.db.pebble.NewBatch()
	defer b.Close()
	err := b.DeleteRange(begin, after(begin), nil)
	if err == nil {
		err = s.db.commit(b)
	}
	if err != nil {
		return fmt.Errorf("embedded: remove a list: %w", err)
	}
	return nil
}
