package redis

import "github.com/minutehand/minutehand/libs/attempts"

// Prefix returns the prefix of the tier's keys.
func (t *Tier) Prefix() string { return t.o.Prefix }

// EndedKey returns the key that holds the packed outcome of an attempt.
func (t *Tier) EndedKey(k attempts.Key) string { return NewRecords(t).endedKey(k) }
