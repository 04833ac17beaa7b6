package embedded

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/minutehand/minutehand/libs/jobstore"
)

// Settings holds the installation's settings on the embedded database.
type Settings struct {
	db *DB
	mu sync.Mutex
}

var _ jobstore.Settings = (*Settings)(nil)

// NewSettings returns the settings of db.
func NewSettings(db *DB) *Settings { return &Settings{db: db} }

// Setting implements jobstore.Settings.
func (s *Settings) Setting(_ context.Context, name string) ([]byte, error) {
	v, _, err := s.db.get(metaKey("setting/" + name))
	if err != nil {
		return nil, fmt.Errorf("embedded: setting: %w", err)
	}
	return v, nil
}

// SwapSetting implements jobstore.Settings.
func (s *Settings) SwapSetting(ctx context.Context, name string, old, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	standing, err := s.Setting(ctx, name)
	if err != nil {
		return err
	}
	if !bytes.Equal(standing, old) {
		return fmt.Errorf("embedded: setting: %w", jobstore.ErrConflict)
	}
	if value == nil {
		err = s.db.remove(metaKey("setting/" + name))
	} else {
		err = s.db.set(metaKey("setting/"+name), value)
	}
	if err != nil {
		return fmt.Errorf("embedded: setting: %w", err)
	}
	return nil
}
