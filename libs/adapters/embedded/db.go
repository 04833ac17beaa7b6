// Package embedded keeps every kind of state in this process: the cold store, the log and the coordinator's numbers in one Pebble
// database with group-committed fsync, the hot buckets and the leases in memory, the archive in a folder.
//
// It promises what the ports promise, for a single process. Whatever was acknowledged survives kill -9 and power loss (on a disk
// that keeps what it said it synced). State in memory is rebuilt by the same sweeps that rebuild a lost Redis. A directory belongs
// to one process at a time and states its format.
package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// FormatVersion is the version of the layout that this build writes. The build also reads the previous version, which differs only
// in that nothing was merged in it, and converts it to this one.
const FormatVersion = 3

// Errors that an operator sees when a directory cannot be opened.
var (
	// ErrInUse means: another process has the directory open.
	ErrInUse = errors.New("data directory is in use by another process")
	// ErrFormat means: the directory was written by a build with another layout.
	ErrFormat = errors.New("data directory has a format that this build does not know")
)

// FS is a file system that can hold the store.
type FS = vfs.FS

// Options configures where the database lives and how much memory it may use.
type Options struct {
	// Dir is the database's folder; it is created if missing.
	Dir string
	// FS is the file system, the machine's if nil.
	FS FS
	// Partitions is the partition count of a new store; that of an existing store must agree. 0 means the store's own, or
	// bucket.DefaultPartitions for a new one.
	Partitions int
	// CacheBytes bounds the block cache, MemTableBytes each of at most four memtables.
	CacheBytes, MemTableBytes int64
	// MaxOpenFiles is about how many files the store keeps open; 0 means 1000.
	MaxOpenFiles int
	// SetupMinute is the low-water mark that a new store gets: the minute of its set-up.
	SetupMinute int64
	Log         *slog.Logger
	// Fatal is called when the store cannot go on, for example because the disk is full; it must not return. Everything that was
	// acknowledged is on disk, and going on would acknowledge what is not. Without it the store panics.
	Fatal func(err error)

	// withoutSync drops every fsync. Only the durability suite sets it, to show that it would notice.
	withoutSync bool
}

// DB is the one database behind the embedded adapters.
type DB struct {
	pebble *pebble.DB
	lock   *pebble.Lock
	write  *pebble.WriteOptions
	fatal  func(err error)
	// closing holds what is called before the database is closed.
	closing    []func()
	partitions int
	// incarnation names what is in memory only: the hot tier, which is lost with this process.
	incarnation string
}

// Incarnation returns that of the hot tier that belongs to this opening of the database.
func (db *DB) Incarnation() string { return db.incarnation }

// DefaultMemTableBytes is the default of Options.MemTableBytes.
const DefaultMemTableBytes = 16 << 20

// Open opens or sets up the database.
func Open(o Options) (*DB, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 32 << 20
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = DefaultMemTableBytes
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Fatal == nil {
		o.Fatal = func(err error) { panic("embedded store cannot go on: " + err.Error()) }
	}
	p, lock, err := openPebble(o)
	if err != nil {
		return nil, err
	}
	db := &DB{pebble: p, lock: lock, write: pebble.Sync, fatal: o.Fatal}
	if o.withoutSync {
		db.write = pebble.NoSync
	}
	err = db.setUp(o)
	if err == nil { // otherwise the store stays as it is
		err = db.drawIncarnation()
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func openPebble(o Options) (*pebble.DB, *pebble.Lock, error) {
	cache := pebble.NewCache(o.CacheBytes)
	defer cache.Unref()
	// Most of what is written is deleted soon. Compacting late spares rewriting much of it, and leaves the CPU to a stampede; a read
	// looks at a few more tables, which their filters make cheap.
	opts := &pebble.Options{
		FS: o.FS, Cache: cache, MemTableSize: uint64(o.MemTableBytes), MemTableStopWritesThreshold: 4,
		LBaseMaxBytes: 4 * o.MemTableBytes, // one level fewer where there is memory
		MaxOpenFiles:  o.MaxOpenFiles, L0CompactionThreshold: 10, L0StopWritesThreshold: 40, Logger: storeLog{o.Log, o.Fatal},
		FormatMajorVersion: pebble.FormatNewest, Merger: firstStands,
	}
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	// Data at rest ends up in the last level, where it is rarely rewritten and compressed best.
	opts.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionBalanced })
	if err := makeFolders(o.FS, o.Dir); err != nil {
		return nil, nil, err
	}
	// Pebble would only say that it could not acquire a lock; asking for the lock first distinguishes this from any other failure.
	lock, err := pebble.LockDirectory(o.Dir, o.FS)
	if err != nil {
		return nil, nil, fmt.Errorf("embedded: %s: %w", o.Dir, ErrInUse)
	}
	opts.Lock = lock
	p, err := pebble.Open(o.Dir, opts)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("embedded: open %s: %w", o.Dir, err), lock.Close())
	}
	return p, lock, nil
}

// makeFolders creates a folder and its parents, durably: a new folder is lost in a power loss unless its parent is synced.
func makeFolders(fsys vfs.FS, dir string) error {
	if err := fsys.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("embedded: make %s: %w", dir, err)
	}
	for d := dir; ; d = fsys.PathDir(d) {
		f, err := fsys.OpenDir(d)
		if err != nil {
			return nil //nolint:nilerr // a parent that this process may not read was there before it
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("embedded: sync %s: %w", d, err)
		}
		if d == fsys.PathDir(d) {
			return nil
		}
	}
}

// setUp writes what a new store needs in one batch, or checks what an existing one says.
func (db *DB) setUp(o Options) error {
	format, found, err := db.getNumber(metaKey("format"))
	if err != nil {
		return fmt.Errorf("embedded: read format: %w", err)
	}
	if !found {
		return db.initialise(o)
	}
	if format == FormatVersion-1 {
		if err := db.set(metaKey("format"), binary.BigEndian.AppendUint64(nil, FormatVersion)); err != nil {
			return fmt.Errorf("embedded: write format: %w", err)
		}
		format = FormatVersion
	}
	if format != FormatVersion {
		return fmt.Errorf("embedded: %s has format %d, this build knows %d: %w", o.Dir, format, FormatVersion, ErrFormat)
	}
	count, _, err := db.getNumber(metaKey("partitions"))
	if err != nil {
		return fmt.Errorf("embedded: read partition count: %w", err)
	}
	if o.Partitions != 0 && int64(o.Partitions) != count {
		return fmt.Errorf("embedded: store has %d partitions, %d were asked for: %w", count, o.Partitions,
			jobstore.ErrPartitions)
	}
	db.partitions = int(count)
	return nil
}

func (db *DB) initialise(o Options) error {
	db.partitions = o.Partitions
	if db.partitions == 0 {
		db.partitions = bucket.DefaultPartitions
	}
	b := db.pebble.NewBatch()
	defer b.Close()
	for p := range db.partitions {
		if err := setNumber(b, progressKey(p), o.SetupMinute); err != nil {
			return err
		}
	}
	if err := setNumber(b, metaKey("partitions"), int64(db.partitions)); err != nil {
		return err
	}
	if err := setNumber(b, metaKey("format"), FormatVersion); err != nil {
		return err
	}
	if err := db.commit(b); err != nil {
		return fmt.Errorf("embedded: set up: %w", err)
	}
	return nil
}

// drawIncarnation begins an incarnation of the hot tier. Its number is durable before anything is done under it.
func (db *DB) drawIncarnation() error {
	last, _, err := db.getNumber(metaKey("incarnation"))
	if err != nil {
		return fmt.Errorf("embedded: read incarnation: %w", err)
	}
	epoch := attempts.NextEpoch(last, time.Now())
	if err := db.set(metaKey("incarnation"), binary.BigEndian.AppendUint64(nil, uint64(epoch))); err != nil {
		return fmt.Errorf("embedded: write incarnation: %w", err)
	}
	db.incarnation = attempts.IncarnationName(epoch, "embedded")
	return nil
}

// Partitions returns the store's partition count.
func (db *DB) Partitions() int { return db.partitions }

// Close closes the database, which must not be used afterwards.
func (db *DB) Close() error {
	for _, f := range db.closing {
		f()
	}
	return errors.Join(db.pebble.Close(), db.lock.Close())
}

// Checkpoint makes a copy of the database in a folder that does not exist yet: everything that was acknowledged before, at one instant,
// while work goes on. On the same file system the copy shares its files with the original, and takes no space of its own at first.
func (db *DB) Checkpoint(dir string) error {
	if err := db.pebble.Checkpoint(dir, pebble.WithFlushedWAL()); err != nil {
		return fmt.Errorf("embedded: checkpoint: %w", err)
	}
	return nil
}

// Lock takes a database's folder without opening it, or returns ErrInUse: nothing changes in it until unlock is called.
func Lock(dir string) (unlock func() error, err error) {
	if _, err := vfs.Default.Stat(dir); err != nil {
		return nil, fmt.Errorf("embedded: lock: %w", err)
	}
	lock, err := pebble.LockDirectory(dir, vfs.Default)
	if err != nil {
		return nil, fmt.Errorf("embedded: %s: %w", dir, ErrInUse)
	}
	return lock.Close, nil
}

// Compact rewrites the whole database in its smallest form.
func (db *DB) Compact(ctx context.Context) error {
	if err := db.pebble.Compact(ctx, []byte{0}, []byte{0xff}, true); err != nil {
		return fmt.Errorf("embedded: compact: %w", err)
	}
	return nil
}

// CacheBytes returns the size of the store's caches, of blocks and of open tables. They lie outside the Go heap.
func (db *DB) CacheBytes() int64 {
	m := db.pebble.Metrics()
	return m.BlockCache.Size + m.FileCache.Size
}

// apply makes a batch visible without waiting for its fsync, which synced does. Batches reach the disk in the order in which they
// were applied, so what a crash leaves behind never lacks anything that was applied before it.
func (db *DB) apply(b *pebble.Batch) error {
	return db.orDie(func() error {
		if !db.write.Sync {
			return db.pebble.Apply(b, db.write)
		}
		return db.pebble.ApplyNoSyncWait(b, db.write)
	})
}

func (db *DB) synced(b *pebble.Batch) error {
	if !db.write.Sync {
		return nil
	}
	return db.orDie(b.SyncWait)
}

// commit applies a batch and waits for its fsync.
func (db *DB) commit(b *pebble.Batch) error {
	return db.orDie(func() error { return b.Commit(db.write) })
}

// commitLater applies a batch that reaches the disk with the next sync.
func (db *DB) commitLater(b *pebble.Batch) error {
	return db.orDie(func() error { return b.Commit(pebble.NoSync) })
}

func (db *DB) set(key, value []byte) error {
	return db.orDie(func() error { return db.pebble.Set(key, value, db.write) })
}

func (db *DB) remove(key []byte) error {
	return db.orDie(func() error { return db.pebble.Delete(key, db.write) })
}

func (db *DB) setLater(key, value []byte) error {
	return db.orDie(func() error { return db.pebble.Set(key, value, pebble.NoSync) })
}

func (db *DB) deleteLater(key []byte) error {
	return db.orDie(func() error { return db.pebble.Delete(key, pebble.NoSync) })
}

func (db *DB) deleteRangeLater(from, to []byte) error {
	return db.orDie(func() error { return db.pebble.DeleteRange(from, to, pebble.NoSync) })
}

// sync waits until everything written so far is on disk; many waiting callers share one fsync.
func (db *DB) sync() error {
	return db.orDie(func() error { return db.pebble.LogData(nil, db.write) })
}

// orDie runs a write. A write that fails leaves the write-ahead log broken: readers may have seen what will not be there after a
// restart, and every later write fails too. Pebble returns such an error, panics with it, or calls Fatalf, depending on where it is
// met first; here they all end in Fatal.
func (db *DB) orDie(write func() error) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case runtime.Error:
			panic(v)
		case error:
			err = v
			db.fatal(v)
		default:
			panic(v)
		}
	}()
	if err = write(); err != nil {
		db.fatal(err)
	}
	return err
}

// get copies a value. found is false if there is none.
func (db *DB) get(key []byte) (value []byte, found bool, err error) {
	v, closer, err := db.pebble.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	value = append([]byte(nil), v...)
	return value, true, closer.Close()
}

func (db *DB) getNumber(key []byte) (int64, bool, error) {
	v, found, err := db.get(key)
	if err != nil || !found {
		return 0, false, err
	}
	if len(v) != 8 {
		return 0, false, fmt.Errorf("number of %s bytes", strconv.Itoa(len(v)))
	}
	return int64(binary.BigEndian.Uint64(v)), true, nil
}

type setter interface {
	Set(key, value []byte, o *pebble.WriteOptions) error
}

func setNumber(s setter, key []byte, n int64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, uint64(n)), nil)
}

// scan calls fn for the keys in [lower, upper) in order until fn returns false; key and value are only valid within fn.
func (db *DB) scan(ctx context.Context, lower, upper []byte, fn func(key, value []byte) (more bool, err error)) error {
	it, err := db.pebble.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		more, err := fn(it.Key(), it.Value())
		if err != nil {
			return errors.Join(err, it.Close())
		}
		if !more {
			break
		}
	}
	return errors.Join(it.Error(), it.Close())
}

// storeLog passes on the store's own log: its errors, but not its routine messages, which are not for people.
type storeLog struct {
	log   *slog.Logger
	fatal func(err error)
}

func (storeLog) Infof(string, ...any) {}

func (l storeLog) Errorf(format string, args ...any) {
	l.log.Error("store error", "error", fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger: it does not return.
func (l storeLog) Fatalf(format string, args ...any) {
	// The cause is one of the arguments; the rest is the store's own wording.
	err := fmt.Errorf(format, args...)
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err = cause
		}
	}
	l.fatal(err)
}
