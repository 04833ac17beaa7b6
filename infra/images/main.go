// Command images writes OCI images of Minutehand's binaries without a container engine: an OCI layout for each, with an image for every
// platform, which any registry takes (skopeo, crane, or a copy into it).
//
// An image is one static binary, the certificate authorities of Mozilla, and nothing else: no shell, no package, no user but 65532. Built
// twice from the same binaries it is the same to the byte. Its SBOM, in SPDX, lists the modules that the binary says it is made of.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	user   = "65532:65532"
	source = "https://github.com/minutehand/minutehand"
)

func main() {
	from := flag.String("from", "", "folder with a folder of static binaries for each platform, such as linux_amd64/job-api")
	to := flag.String("to", "", "folder for the layouts")
	version := flag.String("version", "dev", "version of the binaries")
	flag.Parse()
	if err := run(*from, *to, *version); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// binaries returns those of which an image is made.
func binaries() []string {
	return []string{"minutehand", "job-api", "bucket-loader", "scheduler-worker", "executor", "retry-manager", "audit-writer"}
}

func run(from, to, version string) error {
	platforms, err := filepath.Glob(filepath.Join(from, "*_*"))
	if err != nil || len(platforms) == 0 {
		return fmt.Errorf("there are no binaries in %s: %w", from, err)
	}
	for _, name := range binaries() {
		folder := filepath.Join(to, name)
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, p := range platforms {
			system, architecture, _ := strings.Cut(filepath.Base(p), "_")
			platform := v1.Platform{OS: system, Architecture: architecture}
			image, sbom, err := build(filepath.Join(p, name), name, version, platform)
			if err != nil {
				return fmt.Errorf("%s for %s: %w", name, platform, err)
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
			if err := os.WriteFile(filepath.Join(to, name+"_"+filepath.Base(p)+".spdx.json"), sbom, 0o644); err != nil {
				return err
			}
		}
		if _, err := layout.Write(folder, index); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		digest, err := index.Digest()
		if err != nil {
			return err
		}
		fmt.Println(digest, name)
	}
	return nil
}

// build makes the image of a binary, and its SBOM.
func build(path, name, version string, platform v1.Platform) (v1.Image, []byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	sbom, err := materials(path, name, version, text)
	if err != nil {
		return nil, nil, err
	}
	authorities, err := layer(file{"etc/ssl/certs/ca-certificates.crt", roots(), 0o444})
	if err != nil {
		return nil, nil, err
	}
	program, err := layer(file{name, text, 0o555}, file{"usr/share/sbom/" + name + ".spdx.json", sbom, 0o444})
	if err != nil {
		return nil, nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, authorities, program); err != nil {
		return nil, nil, err
	}
	image, err = mutate.ConfigFile(image, config(image, name, version, platform))
	return image, sbom, err
}

func config(image v1.Image, name, version string, platform v1.Platform) *v1.ConfigFile {
	c, err := image.ConfigFile()
	if err != nil {
		c = &v1.ConfigFile{}
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = platform.OS, platform.Architecture
	c.Created = v1.Time{Time: time.Unix(0, 0).UTC()} // the same image from the same binaries
	c.Config = v1.Config{
		User: user, Entrypoint: []string{"/" + name}, WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title": name, "org.opencontainers.image.version": version, "org.opencontainers.image.source": source,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return c
}

type file struct {
	path string
	text []byte
	mode int64
}

// layer returns a layer with files of root's, whose times say nothing.
func layer(files ...file) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	made := map[string]bool{}
	for _, f := range files {
		parts := strings.Split(f.path, "/")
		for i := 1; i < len(parts); i++ {
			if folder := strings.Join(parts[:i], "/"); !made[folder] {
				made[folder] = true
				if err := w.WriteHeader(&tar.Header{Name: folder + "/", Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX}); err != nil {
					return nil, err
				}
			}
		}
		if err := w.WriteHeader(&tar.Header{Name: f.path, Typeflag: tar.TypeReg, Mode: f.mode, Size: int64(len(f.text)), Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	text := b.Bytes()
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.BestSpeed))
}

// roots returns the certificate authorities that Mozilla trusts without conditions, in PEM.
func roots() []byte {
	var b bytes.Buffer
	for r := range bundle.Roots() {
		if r.Constraint == nil {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate}) // a buffer takes everything
		}
	}
	return b.Bytes()
}

// materials returns what a binary is made of, in SPDX 2.3.
func materials(path, name, version string, text []byte) ([]byte, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	own := map[string]any{
		"SPDXID": "SPDXRef-binary", "name": name, "versionInfo": version, "downloadLocation": source, "filesAnalyzed": false, "licenseConcluded": "Apache-2.0",
		"checksums": []any{map[string]string{"algorithm": "SHA256", "checksumValue": hex.EncodeToString(sum[:])}},
	}
	packages := []any{own, goPackage("SPDXRef-go", "std", strings.TrimPrefix(info.GoVersion, "go"))}
	relations := []any{relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-binary"), relation("SPDXRef-binary", "DEPENDS_ON", "SPDXRef-go")}
	for i, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		id := fmt.Sprintf("SPDXRef-module-%d", i)
		packages = append(packages, goPackage(id, m.Path, m.Version))
		relations = append(relations, relation("SPDXRef-binary", "DEPENDS_ON", id))
	}
	return json.MarshalIndent(map[string]any{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name + "-" + version,
		"documentNamespace": source + "/sbom/" + name + "/" + hex.EncodeToString(sum[:]),
		"creationInfo":      map[string]any{"created": "1970-01-01T00:00:00Z", "creators": []string{"Tool: minutehand-images"}},
		"packages":          packages, "relationships": relations,
	}, "", " ")
}

func goPackage(id, path, version string) map[string]any {
	return map[string]any{
		"SPDXID": id, "name": path, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false, "licenseConcluded": "NOASSERTION",
		"externalRefs": []any{map[string]string{
			"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": "pkg:golang/" + path + "@" + version,
		}},
	}
}

func relation(from, kind, to string) map[string]string {
	return map[string]string{"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to}
}
