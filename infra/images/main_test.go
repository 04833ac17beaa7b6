package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// binaries of this platform, which make images has built.
const built = "../../.bin/images-binaries"

func images(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	if err := run(built, to, "checked"); err != nil {
		t.Fatalf("run make images-test: %v", err)
	}
	return to
}

// image returns the image of a binary for this platform.
func image(t *testing.T, folder, name string) v1.Image {
	t.Helper()
	index, err := layout.ImageIndexFromPath(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range manifest.Manifests {
		if m.Platform.Architecture == runtime.GOARCH {
			i, err := index.Image(m.Digest)
			if err != nil {
				t.Fatal(err)
			}
			return i
		}
	}
	t.Fatalf("%s has no image for %s", name, runtime.GOARCH)
	return nil
}

func TestImagesAreTheSameEachTime(t *testing.T) {
	a, b := images(t), images(t)
	for _, name := range binaries() {
		x, err := image(t, a, name).Digest()
		if err != nil {
			t.Fatal(err)
		}
		if y, err := image(t, b, name).Digest(); err != nil || x != y {
			t.Errorf("%s: %s and %s, %v", name, x, y, err)
		}
	}
}

// Each image is unpacked, and its entry point started as its user in that root and nothing else.
func TestEntryPointRunsAsItsUserInAnEmptyRoot(t *testing.T) {
	folder := images(t)
	for _, name := range binaries() {
		i := image(t, folder, name)
		if err := validate.Image(i); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c, err := i.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c.Config.User != "65532:65532" || c.Config.Labels["org.opencontainers.image.version"] != "checked" || len(c.Config.Entrypoint) != 1 {
			t.Errorf("%s: %+v", name, c.Config)
		}
		root, files := unpack(t, i)
		if len(files) != 3 {
			t.Errorf("%s holds %v, want the binary, its SBOM and the authorities", name, files)
		}
		if os.Geteuid() != 0 {
			t.Fatal("only root may change the root; run it as root, as CI does")
		}
		cmd := exec.Command(c.Config.Entrypoint[0], "--version")
		cmd.Env, cmd.Dir = []string{}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		if text, err := cmd.CombinedOutput(); err != nil || len(text) == 0 {
			t.Errorf("%s: %v: %s", name, err, text)
		}
		var sbom struct {
			Packages []struct{ Name string }
		}
		text, err := os.ReadFile(filepath.Join(root, "usr/share/sbom", name+".spdx.json"))
		if err != nil || json.Unmarshal(text, &sbom) != nil || len(sbom.Packages) < 20 {
			t.Errorf("%s: the SBOM lists %d packages, %v", name, len(sbom.Packages), err)
		}
	}
}

func unpack(t *testing.T, i v1.Image) (root string, files []string) {
	t.Helper()
	root = t.TempDir()
	for folder := root; strings.HasPrefix(folder, os.TempDir()) && folder != os.TempDir(); folder = filepath.Dir(folder) {
		_ = os.Chmod(folder, 0o755) // so that its user may enter
	}
	r := tar.NewReader(mutate.Extract(i))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return root, files
		}
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(root, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(at, 0o755)
		} else {
			files = append(files, h.Name)
			var b bytes.Buffer
			if _, err = io.Copy(&b, r); err == nil {
				err = errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, b.Bytes(), os.FileMode(h.Mode)))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
