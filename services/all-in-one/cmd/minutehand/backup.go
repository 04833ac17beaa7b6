package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	platform "github.com/minutehand/minutehand/services/all-in-one"
)

// controlName is the socket in the data folder by which a process takes orders. Who may write to the folder may give them.
const controlName = "control.sock"

// longestSocket is how long the path of a socket may be.
const longestSocket = 100

// controlPath returns a path of the socket. The system takes no long ones, so a long path is replaced by one through the open folder;
// done closes that.
func controlPath(dir string) (path string, done func(), err error) {
	path, err = filepath.Abs(filepath.Join(dir, controlName))
	if err != nil || len(path) <= longestSocket {
		return path, func() {}, err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), controlName), func() { _ = folder.Close() }, nil
}

// order is what a process is told to do.
type order struct {
	// To is the folder of a backup, absolute.
	To string `json:"to"`
}

// control serves the data folder's socket until stop is called; a backup that is being made when ctx ends is given up.
func control(ctx context.Context, dir string, p *platform.Platform, logger *slog.Logger) (stop func(), err error) {
	path, done, err := controlPath(dir)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a process that was killed
		return nil, err
	}
	listener, err := net.Listen("unix", path) //nolint:noctx // it lives as long as the process
	if err != nil {
		done()
		return nil, err
	}
	var one sync.Mutex
	mux := http.NewServeMux()
	mux.HandleFunc("POST /backup", func(w http.ResponseWriter, r *http.Request) {
		var o order
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&o); err != nil || !filepath.IsAbs(o.To) {
			http.Error(w, "name an absolute folder", http.StatusBadRequest)
			return
		}
		if !one.TryLock() {
			http.Error(w, "another backup is being made", http.StatusConflict)
			return
		}
		defer one.Unlock()
		m, err := p.Backup(ctx, o.To)
		if err != nil {
			logger.Error("a backup failed", "error", err)
			http.Error(w, failedBackup(o.To, err).Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(m) // the client has gone, the backup is there
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	return func() {
		_ = server.Close()
		wg.Wait()
		one.Lock() // a backup that is being made needs the store until it has seen that ctx ended; no other begins
		done()
	}, nil
}

func failedBackup(to string, err error) error {
	if errors.Is(err, platform.ErrThere) {
		return fmt.Errorf("%s exists; name a folder that does not", to)
	}
	if errors.Is(err, platform.ErrInside) {
		return fmt.Errorf("%s lies in the data folder; name one outside", to)
	}
	if errors.Is(err, context.Canceled) {
		return errors.New("the process stops; make the backup when it has")
	}
	return fmt.Errorf("cannot make a backup in %s: %w", to, cause(err))
}

type backupCmd struct {
	To   string `arg:"" help:"Folder to make; it must not exist."`
	Data string `default:".data" env:"MINUTEHAND_DATA" help:"Data folder of the process." placeholder:"DIR"`
}

// Help implements kong.HelpProvider.
func (backupCmd) Help() string {
	return `Copies the data folder of one process as it is at one instant, also while the process runs; every job that was accepted before is in the copy.
On the same file system it takes no time and little space: files are shared. Copy the folder elsewhere afterwards.

  minutehand backup ./backup`
}

// Run implements the command.
func (c *backupCmd) Run(ctx context.Context) error {
	to, err := filepath.Abs(c.To)
	if err != nil {
		return usageError{err}
	}
	m, err := c.ask(ctx, to)
	if errors.Is(err, errNotRunning) {
		if m, err = platform.BackupOf(ctx, c.Data, to); err != nil {
			err = failedBackup(c.To, explain(c.Data, err))
		}
	}
	if err != nil {
		return err
	}
	fmt.Printf("%s holds what %s held at %s\n", c.To, c.Data, m.At.Format(time.RFC3339))
	return nil
}

var errNotRunning = errors.New("no process runs on the folder")

// ask lets the process that runs on the folder make the backup.
func (c *backupCmd) ask(ctx context.Context, to string) (m platform.Manifest, err error) {
	path, done, err := controlPath(c.Data)
	if errors.Is(err, fs.ErrNotExist) {
		return m, errNotRunning
	}
	if err != nil {
		return m, err
	}
	defer done()
	caller := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
	text, err := json.Marshal(order{To: to})
	if err != nil {
		return m, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://process/backup", bytes.NewReader(text))
	if err != nil {
		return m, err
	}
	defer waiting("the backup")()
	resp, err := caller.Do(r)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) { // no socket, or that of a process that was killed
		return m, errNotRunning
	}
	if err != nil {
		return m, fmt.Errorf("the process that runs on %s does not answer: %w", c.Data, cause(err))
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return m, err
	}
	if resp.StatusCode != http.StatusOK {
		return m, errors.New(string(bytes.TrimSpace(answer)))
	}
	return m, json.Unmarshal(answer, &m)
}

type restoreCmd struct {
	From string `arg:"" help:"Folder that minutehand backup made."`
	Data string `default:".data" env:"MINUTEHAND_DATA" help:"Data folder to make; it must not exist." placeholder:"DIR"`
}

// Help implements kong.HelpProvider.
func (restoreCmd) Help() string {
	return `Makes a data folder from a backup. No job that was accepted before the backup is lost. What was called since then is called again when a
process starts on the folder, as its missed-run policy says: with the same Webhook-Id, by which a target recognises it, and a greater
Minutehand-Fencing-Token. Make sure that no other process still runs on a copy of the same data.

  minutehand restore ./backup --data ./data-restored`
}

// Run implements the command.
func (c *restoreCmd) Run(ctx context.Context) error {
	m, err := platform.Restore(ctx, c.From, c.Data)
	switch {
	case errors.Is(err, platform.ErrNoBackup):
		return usageError{fmt.Errorf("%s: %w; copy it again", c.From, err)}
	case errors.Is(err, platform.ErrThere):
		return usageError{fmt.Errorf("%s exists; move it away, or name another folder with --data", c.Data)}
	case err != nil:
		return fmt.Errorf("cannot restore to %s: %w", c.Data, cause(err))
	}
	fmt.Printf("%s is as it was at %s; start it with: minutehand run --data %s\n", c.Data, m.At.Format(time.RFC3339), c.Data)
	return nil
}
