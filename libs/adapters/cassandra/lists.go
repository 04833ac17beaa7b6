package cassandra

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/jobstore"
)

// PutItem implements jobstore.Lists.
func (s *Settings) PutItem(ctx context.Context, list string, i jobstore.Item) error {
	at := i.Version
	if at == 0 {
		at = time.Now().UnixMicro()
	}
	q := s.session.Query("INSERT INTO lists (list, item, value) VALUES (?, ?, ?)", list, []byte(i.Name), i.Value).WithTimestamp(at).Idempotent(true)
	return failed("put an item", q.ExecContext(ctx))
}

// RemoveItem implements jobstore.Lists.
func (s *Settings) RemoveItem(ctx context.Context, list, name string) error {
	q := s.session.Query("DELETE FROM lists WHERE list = ? AND item = ?", list, []byte(name)).
		WithTimestamp(time.Now().UnixMicro()).Idempotent(true)
	return failed("remove an item", q.ExecContext(ctx))
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
