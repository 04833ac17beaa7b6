package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/archive"
)

// Archive keeps objects as files below a folder. An object is written under a temporary name, synced, and then linked to its own
// name, which fails if that exists. So an object is there whole or not at all, and is never replaced.
type Archive struct {
	fs  vfs.FS
	dir string
	// own begins the names of temporary files of a process that is not the folder's own; puts numbers them.
	own  string
	puts atomic.Int64
}

var _ archive.Archive = (*Archive)(nil)

// temporaryFolder holds what is being written.
const temporaryFolder = ".partial"

// NewArchive returns the archive in dir on fsys (vfs.Default if nil) and drops what an earlier process left half written.
func NewArchive(fsys vfs.FS, dir string) (*Archive, error) {
	if fsys == nil {
		fsys = vfs.Default
	}
	a := &Archive{fs: fsys, dir: dir}
	partial := fsys.PathJoin(dir, temporaryFolder)
	if err := fsys.RemoveAll(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("embedded: archive: %w", err)
	}
	if err := makeFolders(fsys, partial); err != nil {
		return nil, err
	}
	return a, nil
}

// OpenArchive returns the archive in dir on the machine's file system, also while another process writes to it. It fails if there is no
// such folder.
func OpenArchive(dir string) (*Archive, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("embedded: archive: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("embedded: archive: %s is no folder", dir)
	}
	// Temporary files of two processes must not have one name: creating a file replaces what was there.
	return &Archive{fs: vfs.Default, dir: dir, own: rand.Text() + "-"}, nil
}

func (a *Archive) syncFolder(dir string) error {
	f, err := a.fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("embedded: archive: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("embedded: archive: %w", err)
	}
	return nil
}

// PutIfAbsent implements archive.Archive.
func (a *Archive) PutIfAbsent(_ context.Context, name string, body []byte) error {
	final := a.path(name)
	temporary := a.fs.PathJoin(a.dir, temporaryFolder, a.own+strconv.FormatInt(a.puts.Add(1), 10))
	if _, err := a.fs.Stat(final); err == nil {
		return fmt.Errorf("embedded: archive: %w", archive.ErrExists)
	}
	if err := makeFolders(a.fs, a.fs.PathDir(final)); err != nil {
		return err
	}
	if a.own != "" { // the process that the folder belongs to has made it
		if err := makeFolders(a.fs, a.fs.PathDir(temporary)); err != nil {
			return err
		}
	}
	f, err := a.fs.Create(temporary, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("embedded: archive: %w", err)
	}
	_, err = f.Write(body)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("embedded: archive: %w", err)
	}
	err = a.fs.Link(temporary, final)
	if errors.Is(err, fs.ErrExist) {
		err = archive.ErrExists
	}
	if err := errors.Join(err, a.fs.Remove(temporary)); err != nil {
		return fmt.Errorf("embedded: archive: %w", err)
	}
	return a.syncFolder(a.fs.PathDir(final))
}

func (a *Archive) path(name string) string {
	return a.fs.PathJoin(append([]string{a.dir}, strings.Split(path.Clean("/" + name)[1:], "/")...)...)
}

// Open implements archive.Archive.
func (a *Archive) Open(_ context.Context, name string) (archive.Object, error) {
	f, err := a.fs.Open(a.path(name))
	if errors.Is(err, fs.ErrNotExist) || err != nil && a.belowObject(name) {
		return nil, fmt.Errorf("embedded: archive: %w", archive.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("embedded: archive: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("embedded: archive: %w", err), f.Close())
	}
	if info.IsDir() {
		return nil, errors.Join(fmt.Errorf("embedded: archive: %w", archive.ErrNotFound), f.Close())
	}
	return object{f, info.Size()}, nil
}

// belowObject reports whether a name lies below an object's name, where nothing can be; file systems differ in the error.
func (a *Archive) belowObject(name string) bool {
	for parent := path.Dir(path.Clean("/" + name)); parent != "/"; parent = path.Dir(parent) {
		if info, err := a.fs.Stat(a.path(parent)); err == nil {
			return !info.IsDir()
		}
	}
	return false
}

type object struct {
	file vfs.File
	size int64
}

func (o object) ReadAt(p []byte, off int64) (int, error) {
	if off >= o.size {
		return 0, io.EOF
	}
	n, err := o.file.ReadAt(p[:min(int64(len(p)), o.size-off)], off)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

func (o object) Close() error { return o.file.Close() }
func (o object) Size() int64  { return o.size }

// List implements archive.Archive.
func (a *Archive) List(_ context.Context, prefix string) ([]string, error) {
	var names []string
	if err := a.walk(a.dir, "", prefix, &names); err != nil {
		return nil, fmt.Errorf("embedded: archive: %w", err)
	}
	sort.Strings(names)
	return names, nil
}

func (a *Archive) walk(dir, name, prefix string, names *[]string) error {
	children, err := a.fs.List(dir)
	if err != nil {
		return err
	}
	for _, c := range children {
		full, file := path.Join(name, c), a.fs.PathJoin(dir, c)
		if full == temporaryFolder || !strings.HasPrefix(full, prefix) && !strings.HasPrefix(prefix, full) {
			continue
		}
		info, err := a.fs.Stat(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if info.IsDir() {
			err = a.walk(file, full, prefix, names)
		} else if strings.HasPrefix(full, prefix) {
			*names = append(*names, full)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
