package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
)

// Manifest says what a backup is. It names every file with its size, so a backup that was copied only in part is not taken for a whole
// one.
type Manifest struct {
	At    time.Time        `json:"at"`
	Files map[string]int64 `json:"files"`
}

// ManifestName is the manifest's file in a backup.
const ManifestName = "backup.json"

// Errors that an operator sees.
var (
	// ErrThere means: the folder that a backup or a restore is to make exists.
	ErrThere = errors.New("the folder exists")
	// ErrInside means: a backup cannot lie in the folder that it is made of.
	ErrInside = errors.New("the folder lies in the data folder")
	// ErrNoBackup means: a folder is no whole backup.
	ErrNoBackup = errors.New("the folder is no whole backup")
)

// partial is the end of a folder's name while it is being made.
const partial = ".partial"

// Backup makes a copy of store and archive in a folder that does not exist yet, while the platform runs. The copy holds every job that
// was acknowledged before the call. It is there whole or not at all.
//
// The store is copied first: the archive may then have records that the copied log does not have. An archiver that starts on the copy
// takes them for those of a log that lost its end (decision 31). The other way around, records would be missing.
func (p *Platform) Backup(ctx context.Context, to string) (Manifest, error) {
	return backup(ctx, p.dir, to, p.db.Checkpoint)
}

// BackupOf makes a backup of a data folder that no process uses, or returns [embedded.ErrInUse]. It changes nothing there.
func BackupOf(ctx context.Context, dir, to string) (Manifest, error) {
	store := filepath.Join(dir, "store")
	unlock, err := embedded.Lock(store)
	if err != nil {
		return Manifest{}, err
	}
	m, err := backup(ctx, dir, to, func(copy string) error {
		return copied(ctx, store, copy, copyFile) // no links: the store's next process changes some of its files
	})
	return m, errors.Join(err, unlock())
}

func backup(ctx context.Context, dir, to string, store func(to string) error) (Manifest, error) {
	m := Manifest{At: time.Now().UTC(), Files: map[string]int64{}}
	own, err := filepath.Abs(dir)
	if err != nil {
		return m, err
	}
	to, err = filepath.Abs(to)
	if err != nil {
		return m, err
	}
	if rel, err := filepath.Rel(own, to); err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return m, ErrInside
	}
	return m, made(to, func(folder string) error {
		if err := store(filepath.Join(folder, "store")); err != nil {
			return err
		}
		archive := filepath.Join(dir, "archive", "audit")
		if _, err := os.Stat(archive); err == nil { // otherwise nothing was archived yet
			if err := copied(ctx, archive, filepath.Join(folder, "archive", "audit"), linkFile); err != nil {
				return err
			}
		}
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(folder, path)
			m.Files[filepath.ToSlash(rel)] = info.Size()
			return err
		})
		if err != nil {
			return err
		}
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		return written(filepath.Join(folder, ManifestName), text)
	})
}

// Restore makes a data folder, which must not exist yet, from a backup. A process that starts on it goes on from the backup's instant:
// what was called since is called again, in the same executions and under greater fencing tokens.
func Restore(ctx context.Context, from, dir string) (m Manifest, err error) {
	text, err := os.ReadFile(filepath.Join(from, ManifestName))
	if err != nil {
		return m, fmt.Errorf("%w: it has no %s", ErrNoBackup, ManifestName)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrNoBackup, ManifestName, err)
	}
	for name, size := range m.Files {
		if info, err := os.Stat(filepath.Join(from, filepath.FromSlash(name))); err != nil || info.Size() != size {
			return m, fmt.Errorf("%w: %s is missing, or not as large as it was", ErrNoBackup, name)
		}
	}
	return m, made(dir, func(folder string) error {
		for _, part := range []string{"store", "archive"} {
			of := filepath.Join(from, part)
			if _, err := os.Stat(of); part == "archive" && errors.Is(err, fs.ErrNotExist) { // nothing was archived yet
				if err := os.Mkdir(filepath.Join(folder, part), 0o700); err != nil {
					return err
				}
				continue
			}
			if err := copied(ctx, of, filepath.Join(folder, part), copyFile); err != nil {
				return err
			}
		}
		db, err := embedded.Open(embedded.Options{Dir: filepath.Join(folder, "store")})
		if err != nil {
			return err
		}
		return errors.Join(db.SkipStarts(time.Now()), db.Close())
	})
}

// made makes a folder under another name, and gives it its own once it is whole and on disk.
func made(dir string, fill func(folder string) error) error {
	dir = filepath.Clean(dir)
	if _, err := os.Lstat(dir); err == nil {
		return ErrThere
	}
	folder := dir + partial
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	err := os.MkdirAll(folder, 0o700)
	if err == nil {
		err = fill(folder)
	}
	if err == nil {
		err = foldersOnDisk(folder)
	}
	if err == nil {
		err = os.Rename(folder, dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(folder))
	}
	return onDisk(filepath.Dir(dir))
}

// copied copies what lies below a folder, file by file, by way. It ends with ctx.
func copied(ctx context.Context, from, to string, way func(from, to string) error) error {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder", path)
		}
		return way(path, filepath.Join(to, rel))
	})
}

// linkFile lets the copy share the file, which nothing ever changes; on another file system it copies it.
func linkFile(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	return copyFile(from, to)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it was read
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

func written(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// foldersOnDisk makes the names of the files below a folder durable; the files are.
func foldersOnDisk(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return onDisk(path)
	})
}

func onDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
