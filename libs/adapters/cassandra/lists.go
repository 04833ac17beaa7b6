package cassandra

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/jobstore"
)

// PutItem implements jobstore.Lists.
func (s *Settings) PutItem(ctx context.Context, list string, i jobstore.Item) error {
	q := s.session.Query("INSERT INTO lists (list, item, value) VALUES (?, ?, ?)", list, []byte(i.Name), i.Value).
		WithTimestamp(written(i.Version)).Idempotent(true)
	return failed("put an item", q.ExecContext(ctx))
}

// RemoveItem implements jobstore.Lists. Of a write and a removal with one timestamp, the removal stands.
func (s *Settings) RemoveItem(ctx context.Context, list, name string, version int64) error {
	q := s.session.Query("DELETE FROM lists WHERE list = ? AND item = ?", list, []byte(name)).WithTimestamp(written(version)).Idempotent(true)
	return failed("remove an item", q.ExecContext(ctx))
}

// written returns the timestamp of a write with a version, 0 for none.
func written(version int64) int64 {
	if version == 0 {
		return time.Now().UnixMicro()
	}
	return version
}

// Items implements jobstore.Lists.
func (s *Settings) Items(ctx context.Context, list, after string, limit int) (items []jobstore.Item, err error) {
	it := s.session.Query("SELECT item, value FROM lists WHERE list = ? AND item > ? LIMIT ?", list, []byte(after), limit).
		Idempotent(true).IterContext(ctx)
	var name, value []byte
	for it.Scan(&name, &value) {
		items = append(items, jobstore.Item{Name: string(name), Value: value})
		name, value = nil, nil
	}
	return items, failed("read a list", it.Close())
}

// RemoveList implements jobstore.Lists.
func (s *Settings) RemoveList(ctx context.Context, list string) error {
	q := s.session.Query("DELETE FROM lists WHERE list = ?", list).WithTimestamp(time.Now().UnixMicro()).Idempotent(true)
	return failed("remove a list", q.ExecContext(ctx))
}
