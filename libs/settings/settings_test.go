package settings_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/minutehand/minutehand/libs/settings"
)

type program struct {
	settings.File
	Brokers settings.Addresses `default:"a:1" env:"MINUTEHAND_BROKERS" help:"Brokers."`
	Parts   settings.Count     `default:"3" env:"MINUTEHAND_PARTS" help:"Parts."`
	Limit   settings.Duration  `default:"20s" env:"MINUTEHAND_LIMIT" help:"A limit."`
	Secret  settings.SecretFile
}

func parse(t *testing.T, args ...string) (*program, *kong.Context, error) {
	t.Helper()
	var p program
	k, err := kong.New(&p, kong.Name("program"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := k.Parse(args)
	return &p, ctx, err
}

func TestFlagGoesBeforeVariableBeforeFileBeforeDefault(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("brokers: b:1, b:2\nparts: 5\nlimit: 5s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MINUTEHAND_PARTS", "6")
	t.Setenv("MINUTEHAND_LIMIT", "6s")
	p, ctx, err := parse(t, "--config", file, "--limit", "7s")
	if err != nil {
		t.Fatal(err)
	}
	all, order := p.Values(ctx)
	var out strings.Builder
	settings.Print(&out, all, order)
	for _, want := range []string{"brokers  b:1,b:2  file " + file, "parts    6        environment variable MINUTEHAND_PARTS", "limit    7s       flag", "secret            default"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no line %q in\n%s", want, out.String())
		}
	}
}

func TestWrongValueIsNamedWithWhatItMustBe(t *testing.T) {
	for args, want := range map[string]string{
		"--parts=0": "--parts: must be a whole number of at least 1", "--parts=x": "a whole number", "--limit=0s": "a length of time like 90s",
		"--limit=5": "a length of time", "--brokers=a:1,": "separated by commas",
	} {
		if _, _, err := parse(t, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestSecretIsWhatItsFileHolds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(" s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := settings.SecretFile(file).Read(); got != "s3cret" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := settings.SecretFile("").Read(); got != "" || err != nil {
		t.Errorf("no file: %q, %v", got, err)
	}
	if _, err := settings.SecretFile(file + ".none").Read(); err == nil {
		t.Error("a file that is not there was read")
	}
}
