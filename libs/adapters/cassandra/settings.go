package cassandra

import (
	"context"
	"errors"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/minutehand/minutehand/libs/jobstore"
)

// Settings holds the few values that concern the whole installation.
type Settings struct{ *Store }

var _ jobstore.Settings = (*Settings)(nil)

// NewSettings returns the settings of a store.
func NewSettings(s *Store) *Settings { return &Settings{s} }

// Setting implements jobstore.Settings.
func (s *Settings) Setting(ctx context.Context, name string) (value []byte, err error) {
	err = s.session.Query("SELECT value FROM cluster WHERE name = ?", name).Idempotent(true).ScanContext(ctx, &value)
	if errors.Is(err, gocql.ErrNotFound) {
		return nil, nil
	}
	return value, failed("setting", err)
}

// SwapSetting implements jobstore.Settings.
func (s *Settings) SwapSetting(ctx context.Context, name string, old, value []byte) error {
	q := s.session.Query("UPDATE cluster SET value = ? WHERE name = ? IF value = ?", value, name, old)
	switch {
	case len(value) == 0:
		q = s.session.Query("DELETE FROM cluster WHERE name = ? IF value = ?", name, old)
	case len(old) == 0:
		q = s.session.Query("INSERT INTO cluster (name, value) VALUES (?, ?) IF NOT EXISTS", name, value)
	}
	applied, err := q.MapScanCASContext(ctx, map[string]any{})
	if err == nil && !applied {
		err = jobstore.ErrConflict
	}
	return failed("setting", err)
}
