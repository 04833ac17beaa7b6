package embed

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// sdkModule is the module that the quick start of the SDK gets.
const sdkModule = "github.com/minutehand/minutehand/libs/sdk"

const quickStartPatience = 5 * time.Minute // it builds the program

// block is the first piece of a language in a README.
func block(t *testing.T, readme, language string) string {
	t.Helper()
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s has no piece of %s", readme, language)
	}
	return string(found[1])
}

// shell runs commands in a folder, and returns what they print.
func shell(t *testing.T, dir, commands string) string {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), quickStartPatience)
	defer end()
	cmd := exec.CommandContext(ctx, "sh", "-ec", commands)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=", "GOFLAGS=")
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, errors.String())
	}
	return string(out)
}

// beside is a folder that has this clone under its name.
func beside(t *testing.T) (dir string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.Symlink(root, filepath.Join(dir, "minutehand")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestQuickStartOfTheREADMERunsAsItStands(t *testing.T) {
	dir := beside(t)
	clone, commands, _ := strings.Cut(block(t, "README.md", "sh"), "\n")
	if !strings.HasPrefix(clone, "git clone ") {
		t.Fatalf("it begins with %q", clone)
	}
	shell(t, dir, commands)
	hello := filepath.Join(dir, "hello")
	if err := os.WriteFile(filepath.Join(hello, "main.go"), []byte(block(t, "README.md", "go")), 0o600); err != nil {
		t.Fatal(err)
	}
	out := shell(t, hello, "go run .")
	if strings.Count(out, "hello world\n") != 1 || strings.Count(out, "hello again\n") < 2 {
		t.Errorf("it prints %q", out)
	}
	if again := shell(t, hello, "go run ."); strings.Count(again, "hello world\n") != 1 {
		t.Errorf("the second time it prints %q", again)
	}
}

func TestQuickStartOfTheSDKRunsAsItStands(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.TempDir(), Settings{Listener: listener})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	dir := beside(t)
	var commands []string
	for line := range strings.Lines(block(t, "../sdk/README.md", "sh")) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "go get "+sdkModule+"@"): // there is no network; as go get does, this wants a go.mod
			line = "go mod edit -require=" + sdkModule + "@v0.0.0 -replace=" + sdkModule + "=../minutehand/libs/sdk"
		case line == "minutehand run &":
			line = ":" // the server runs here
		}
		commands = append(commands, line)
	}
	folder := strings.TrimSpace(shell(t, dir, strings.Join(append(commands, "pwd"), "\n")))
	program := strings.ReplaceAll(block(t, "../sdk/README.md", "go"), "http://127.0.0.1:8080", "http://"+listener.Addr().String())
	if err := os.WriteFile(filepath.Join(folder, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	out := shell(t, folder, "go run .")
	if want := "invoice for customer 0\ninvoice for customer 1\ninvoice for customer 2\n"; out != want {
		t.Errorf("it prints %q", out)
	}
}
