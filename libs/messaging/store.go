package messaging

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/minutehand/minutehand/libs/job"
)

// Settings reads the settings in which the connections of tenants are kept, with their secrets.
type Settings interface {
	// Setting reads a value; nil if there is none.
	Setting(ctx context.Context, name string) ([]byte, error)
}

// SettingOf returns the name of the setting that holds the connections of a tenant, as the JSON of a [Set].
func SettingOf(t job.Tenant) string { return "connections/" + t.String() }

// MaxSetBytes bounds the connections of a tenant in all.
const MaxSetBytes = 512 << 10

// Set is all connections of a tenant.
type Set struct {
	// Connections are by name. Those that are not touched stay as they are, whatever a later release wrote into them.
	Connections map[string]json.RawMessage `json:"connections"`
	// Changes are those by which the set came about: see [job.ChangeRef].
	Changes []job.ChangeRef `json:"changes,omitempty"`
}

// Read returns the connections of a tenant, and the value of the setting.
func Read(ctx context.Context, s Settings, of job.Tenant) (value []byte, set Set, err error) {
	value, err = s.Setting(ctx, SettingOf(of))
	if err == nil && len(value) > 0 {
		err = json.Unmarshal(value, &set)
	}
	if err != nil {
		return nil, Set{}, fmt.Errorf("read the connections of tenant %s: %w", of, err)
	}
	return value, set, nil
}

// Get returns a connection; ErrNotFound if there is none of that name.
func (s *Set) Get(name string) (*Connection, error) {
	raw, ok := s.Connections[name]
	if !ok {
		return nil, fmt.Errorf("connection %s: %w", name, ErrNotFound)
	}
	c := Connection{Name: name}
	if err := json.Unmarshal(raw, &c); err != nil || (c.Kafka == nil) == (c.SQS == nil) {
		return nil, &Refusal{Reason: "connection " + name + " is of a kind that this release does not know"}
	}
	return &c, nil
}

// Put puts a connection in place of the one of that name. ErrTooMany means that there is no room.
func (s *Set) Put(c *Connection) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode connection %s: %w", c.Name, err)
	}
	if s.Connections == nil {
		s.Connections = map[string]json.RawMessage{}
	}
	s.Connections[c.Name] = raw
	size := 0
	for name, raw := range s.Connections {
		size += len(name) + len(raw)
	}
	if len(s.Connections) > MaxConnections || size > MaxSetBytes {
		return ErrTooMany
	}
	return nil
}

// Names returns the names of all connections, in order.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.Connections)) }
