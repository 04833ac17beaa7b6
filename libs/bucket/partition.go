// Package bucket says where an entry lives: which partition a job belongs to, and how minutes follow each other.
// Like the rest of the vocabulary it is pure and needs only the standard library.
package bucket

import (
	"encoding/binary"
	"math/bits"
)

// DefaultPartitions is the partition count of a store that is set up without one. It is fixed from then on.
const DefaultPartitions = 1024

// MaxPartitions bounds what a store may be set up with.
const MaxPartitions = 1 << 14

// Partition is the partition of a job among count: XXH64(job id, seed 0) mod count.
func Partition(jobID string, count int) int {
	return int(XXH64(jobID) % uint64(count))
}

const (
	prime1 uint64 = 0x9E3779B185EBCA87
	prime2 uint64 = 0xC2B2AE3D27D4EB4F
	prime3 uint64 = 0x165667B19E3779F9
	prime4 uint64 = 0x85EBCA77C2B2AE63
	prime5 uint64 = 0x27D4EB2F165667C5
)

// XXH64 is the 64-bit xxHash of s with seed 0, as specified at
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
func XXH64(s string) uint64 {
	b := []byte(s)
	h := prime5
	if len(b) >= 32 {
		acc := prime1
		v := [4]uint64{acc + prime2, prime2, 0, -acc}
		for ; len(b) >= 32; b = b[32:] {
			for i := range v {
				v[i] = round(v[i], binary.LittleEndian.Uint64(b[8*i:]))
			}
		}
		h = bits.RotateLeft64(v[0], 1) + bits.RotateLeft64(v[1], 7) +
			bits.RotateLeft64(v[2], 12) + bits.RotateLeft64(v[3], 18)
		for _, x := range v {
			h = (h^round(0, x))*prime1 + prime4
		}
	}
	return avalanche(tail(h+uint64(len(s)), b))
}

func round(acc, lane uint64) uint64 {
	return bits.RotateLeft64(acc+lane*prime2, 31) * prime1
}

func tail(h uint64, b []byte) uint64 {
	for ; len(b) >= 8; b = b[8:] {
		h = bits.RotateLeft64(h^round(0, binary.LittleEndian.Uint64(b)), 27)*prime1 + prime4
	}
	if len(b) >= 4 {
		h = bits.RotateLeft64(h^uint64(binary.LittleEndian.Uint32(b))*prime1, 23)*prime2 + prime3
		b = b[4:]
	}
	for _, c := range b {
		h = bits.RotateLeft64(h^uint64(c)*prime5, 11) * prime1
	}
	return h
}

func avalanche(h uint64) uint64 {
	h = (h ^ h>>33) * prime2
	h = (h ^ h>>29) * prime3
	return h ^ h>>32
}
