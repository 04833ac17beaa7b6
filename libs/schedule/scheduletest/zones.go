// Package scheduletest makes time zone data of which a test knows what it says.
package scheduletest

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"time"
)

// Zone is what the clocks of a zone do: the offset from UTC with which it begins, and its changes.
type Zone struct {
	Offset  time.Duration
	Changes []Change
}

// Change is an instant from which clocks show another offset.
type Change struct {
	At     time.Time
	Offset time.Duration
}

// WriteZone writes a zone into a folder of time zone data, in the format of RFC 8536, version 2.
func WriteZone(dir, name string, z Zone) error {
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return os.WriteFile(path, z.encode(), 0o600)
}

func (z *Zone) encode() []byte {
	var out bytes.Buffer
	offsets := []time.Duration{z.Offset}
	for _, c := range z.Changes {
		offsets = append(offsets, c.Offset)
	}
	header := func(changes, types int) {
		out.WriteString("TZif2")
		out.Write(make([]byte, 15))
		for _, n := range []int{0, 0, 0, changes, types, 4} { // UT and standard indicators, leap seconds, changes, types, characters of names
			_ = binary.Write(&out, binary.BigEndian, uint32(n)) //nolint:gosec // a handful
		}
	}
	header(0, 1) // the block of version 1, which nobody reads
	out.Write([]byte{0, 0, 0, 0, 0, 0})
	out.WriteString("ZZZ\x00")
	header(len(z.Changes), len(offsets))
	for _, c := range z.Changes {
		_ = binary.Write(&out, binary.BigEndian, c.At.Unix())
	}
	for i := range z.Changes {
		out.WriteByte(byte(i + 1)) //nolint:gosec // a handful
	}
	for _, o := range offsets {
		_ = binary.Write(&out, binary.BigEndian, int32(o.Seconds()))
		out.Write([]byte{0, 0})
	}
	out.WriteString("ZZZ\x00\n\n")
	return out.Bytes()
}
