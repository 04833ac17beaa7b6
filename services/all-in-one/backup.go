package platform

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
)

// Manifest says what a backup is. It is written last, so a folder with one is whole.
type Manifest struct {
	Format int       `json:"format"`
	At     time.Time `json:"at"`
}

// ManifestName is the manifest's file in a backup.
const ManifestName = "backup.json"

// Errors that an operator sees.
var (
	// ErrThere means: the folder that a backup or a restore is to make exists.
	ErrThere = errors.New("the folder exists")
	// ErrNoBackup means: a folder is no whole backup.
	ErrNoBackup = errors.New("the folder is no backup")
)

// partial is the end of a folder's name while it is being made.
const partial = ".partial"

// Backup makes a copy of store and archive in a folder that does not exist yet, while the platform runs. The copy holds every job that
// was acknowledged before the call. It is there whole or not at all.
func (p *Platform) Backup(to string) (Manifest, error) { return backup(p.db, p.dir, to) }

// BackupOf makes a backup of a data folder that no process uses.
func BackupOf(dir, to string) (Manifest, error) {
	if _, err := os.Stat(filepath.Join(dir, "store")); err != nil {
		return Manifest{}, err
	}
	db, err := embedded.Open(embedded.Options{Dir: filepath.Join(dir, "store")})
	if err != nil {
		return Manifest{}, err
	}
	m, err := backup(db, dir, to)
	return m, errors.Join(err, db.Close())
}

// backup copies the store first: the archive may then have records that the copied log does not have. An archiver that starts on the copy
// takes them for those of a log that lost its end (decision 31). The other way around, records would be missing.
func backup(db *embedded.DB, dir, to string) (Manifest, error) {
	m := Manifest{Format: embedded.FormatVersion, At: time.Now().UTC()}
	err := made(to, func(folder string) error {
		if err := db.Checkpoint(filepath.Join(folder, "store")); err != nil {
			return err
		}
		if err := copied(filepath.Join(dir, "archive", "audit"), filepath.Join(folder, "archive", "audit"), os.Link); err != nil {
			return err
		}
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		return written(filepath.Join(folder, ManifestName), text)
	})
	return m, err
}

// Restore makes a data folder, which must not exist yet, from a backup. A process that starts on it goes on from the backup's instant:
// what was called since is called again, in the same executions and under greater fencing tokens.
func Restore(from, dir string) (m Manifest, err error) {
	text, err := os.ReadFile(filepath.Join(from, ManifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return m, ErrNoBackup
	}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		return m, fmt.Errorf("%w: %w", ErrNoBackup, err)
	}
	return m, made(dir, func(folder string) error {
		for _, part := range []string{"store", "archive"} {
			// Copies, not links: the process will change files of the store.
			if err := copied(filepath.Join(from, part), filepath.Join(folder, part), copyFile); err != nil {
				return err
			}
		}
		return nil
	})
}

// made makes a folder under another name, and gives it its own once it is whole and on disk.
func made(dir string, fill func(folder string) error) error {
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
		err = errors.Join(onDisk(folder), os.Rename(folder, dir), onDisk(filepath.Dir(dir)))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(folder))
	}
	return nil
}

// copied copies what lies below a folder, file by file, by way; where a link is not possible, by a copy.
func copied(from, to string, way func(from, to string) error) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == from {
			return nil // nothing was archived yet
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		if way(path, filepath.Join(to, rel)) == nil {
			return nil
		}
		return copyFile(path, filepath.Join(to, rel))
	})
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

func onDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
