package redis

import "github.com/minutehand/minutehand/libs/attempts"

// Prefix is that of the tier's keys.
func (t *Tier) Prefix() string { return t.o.Prefix }

// EndedKey is where the packed outcome of an attempt lies.
func (t *Tier) EndedKey(k attempts.Key) string { return NewRecords(t).endedKey(k) }
