package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// repository is its root, seen from this folder.
const repository = "../../../.."

var (
	link      = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`)
	namedFile = regexp.MustCompile("`([A-Za-z0-9_./-]+\\.(?:go|md|tla|yaml|proto|sh))`")
)

// A document leads a reader to files by links, and by names in backticks, which are relative to the document, to the root, or the end of
// some file's path.
func TestEveryFileThatADocumentNamesIsThere(t *testing.T) {
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	var files, documents []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		hidden := strings.HasPrefix(d.Name(), ".") && d.Name() != ".github" && path != root
		switch {
		case err != nil:
			return err
		case d.IsDir() && (hidden || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		files = append(files, path)
		if filepath.Ext(path) == ".md" {
			documents = append(documents, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
	for _, document := range documents {
		text, err := os.ReadFile(document) //nolint:gosec // a file of this repository
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(document, root+"/")
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[1], "://") && !exists(filepath.Join(filepath.Dir(document), m[1])) {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
		for _, m := range namedFile.FindAllStringSubmatch(string(text), -1) {
			if !exists(filepath.Join(filepath.Dir(document), m[1])) && !endsSome(files, "/"+m[1]) {
				t.Errorf("%s names %s, which is not there", name, m[1])
			}
		}
	}
	if len(documents) < 40 {
		t.Errorf("only %d documents were found", len(documents))
	}
}

func endsSome(files []string, end string) bool {
	for _, f := range files {
		if strings.HasSuffix(f, end) {
			return true
		}
	}
	return false
}
