package redis

import "github.com/minutehand/minutehand/libs/attempts"

// Prefix returns the prefix of the tier's keys.
func (t *Tier) Prefix() string { return t.o.Prefix }

// EndedKeys returns the keys of the hashes of which one may hold the packed outcome of an attempt.
func (t *Tier) EndedKeys(k attempts.Key) []string { return NewRecords(t).keysOf(k)[1:] }
