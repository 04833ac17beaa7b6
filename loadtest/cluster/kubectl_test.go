//go:build servers

package cluster_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/minutehand/minutehand/loadtest/fleet"
)

// releaseName is that of the Helm release for which runbooks are written.
const releaseName = "minutehand"

// kubectlAt writes a command kubectl that asks an address, and returns its folder.
func (f *platform) kubectlAt(address string) (folder string) {
	f.t.Helper()
	folder = f.t.TempDir()
	f.must(os.WriteFile(filepath.Join(folder, "kubectl"), []byte("#!/bin/sh\nexec curl -fsS --data-binary \"$*\" "+address+"\n"), 0o700)) //nolint:gosec // a command
	return folder
}

// kubectl does to the fleet what the commands of runbooks do to Deployments and pods.
func (f *platform) kubectl(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(io.LimitReader(r.Body, 1<<10))
	args := strings.Fields(string(text))
	switch {
	case len(args) == 4 && strings.Join(args[:2], " ") == "scale deployment":
		n, err := strconv.Atoi(strings.TrimPrefix(args[3], "--replicas="))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.scale(strings.TrimPrefix(args[2], releaseName+"-"), n)
	case len(args) == 3 && strings.Join(args[:2], " ") == "delete pod":
		i := strings.LastIndex(args[2], "-")
		n, err := strconv.Atoi(args[2][i+1:])
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.replace(args[2][:i], n)
	case len(args) == 4 && strings.Join(args[:3], " ") == "rollout restart deployment":
		for n := range 2 {
			f.replace(strings.TrimPrefix(args[3], releaseName+"-"), n)
		}
	case len(args) > 1 && args[0] == "wait": // the commands above have waited
	default:
		http.Error(w, "the drill knows no kubectl "+string(text), http.StatusBadRequest)
	}
}

// replace ends a process, if it runs, and starts another in its place.
func (f *platform) replace(service string, n int) {
	m := f.Member(service, n)
	m.Signal(syscall.SIGKILL)
	<-m.Ended //nolint:errcheck // it was killed
	f.restart(service, n)
}

// scale makes n processes of a service run.
func (f *platform) scale(service string, n int) {
	runs := map[int]*fleet.Member{}
	for _, m := range f.Members {
		select {
		case <-m.Ended:
		default:
			if m.Service == service {
				runs[m.N] = m
			}
		}
	}
	for i := range n {
		if runs[i] == nil {
			f.restart(service, i)
		}
	}
	for i, m := range runs {
		if i >= n {
			f.must(m.Stop())
		}
	}
	f.Members = slices.DeleteFunc(f.Members, func(m *fleet.Member) bool { return m.Service == service && m.N >= n })
}
