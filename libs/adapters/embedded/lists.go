package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/minutehand/minutehand/libs/jobstore"
)

func itemKey(list, name string) []byte { return append(text([]byte{tableList}, list), name...) }

func versionKey(list, name string) []byte { return append(text([]byte{tableVersion}, list), name...) }

// PutItem implements jobstore.Lists.
func (s *Settings) PutItem(_ context.Context, list string, i jobstore.Item) error {
	err := s.putItem(list, &i)
	if err != nil {
		return fmt.Errorf("embedded: put an item: %w", err)
	}
	return nil
}

func (s *Settings) putItem(list string, i *jobstore.Item) error {
	if i.Version == 0 {
		return s.db.set(itemKey(list, i.Name), i.Value)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := versionKey(list, i.Name)
	stands, _, err := s.db.getNumber(key)
	if err != nil || stands > i.Version {
		return err
	}
	b := s.db.pebble.NewBatch()
	defer b.Close()
	if err := errors.Join(b.Set(itemKey(list, i.Name), i.Value, nil), b.Set(key, binary.BigEndian.AppendUint64(nil, uint64(i.Version)), nil)); err != nil {
		return err
	}
	return s.db.commit(b)
}

// RemoveItem implements jobstore.Lists.
func (s *Settings) RemoveItem(_ context.Context, list, name string, version int64) error {
	err := s.removeItem(list, name, version)
	if err != nil {
		return fmt.Errorf("embedded: remove an item: %w", err)
	}
	return nil
}

func (s *Settings) removeItem(list, name string, version int64) error {
	key := versionKey(list, name)
	if version != 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		stands, _, err := s.db.getNumber(key)
		if err != nil || stands > version {
			return err
		}
	}
	b := s.db.pebble.NewBatch()
	defer b.Close()
	if err := errors.Join(b.Delete(itemKey(list, name), nil), b.Delete(key, nil)); err != nil {
		return err
	}
	return s.db.commit(b)
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
	items, versions := itemKey(list, ""), versionKey(list, "")
	b := s.db.pebble.NewBatch()
	defer b.Close()
	err := errors.Join(b.DeleteRange(items, after(items), nil), b.DeleteRange(versions, after(versions), nil))
	if err == nil {
		err = s.db.commit(b)
	}
	if err != nil {
		return fmt.Errorf("embedded: remove a list: %w", err)
	}
	return nil
}
