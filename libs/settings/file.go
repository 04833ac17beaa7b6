package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// File is the part of a program's settings that names its file. The program embeds it in its other settings.
type File struct {
	Config string `env:"MINUTEHAND_CONFIG" help:"YAML file with a line for each setting, named like its flag." placeholder:"FILE"`

	file settingsFile
}

// notSettings are the flags that a file cannot set.
var notSettings = []string{"help", "config", "output", "version", "print-config", "print-reference", "dry-run", "for-restore"}

// BeforeResolve implements kong's hook: it reads the file as soon as its name is known.
func (s *File) BeforeResolve(ctx *kong.Context, path *kong.Path) error {
	flags := map[string]*kong.Flag{}
	for _, f := range path.Flags {
		flags[f.Name] = f
	}
	name, _ := ctx.FlagValue(flags["config"]).(string)
	if name == "" {
		return nil
	}
	for _, not := range notSettings {
		delete(flags, not)
	}
	var err error
	if s.file, err = readSettings(name, flags); err == nil {
		ctx.AddResolver(s.file)
	}
	return err
}

// source returns where the value of a flag came from, and the name of the variable or the file.
func (s *File) source(ctx *kong.Context, f *kong.Flag) (kind, name string) {
	given := func(p *kong.Path) bool { return p.Flag == f && !p.Resolved }
	if slices.ContainsFunc(ctx.Path, given) {
		return "flag", ""
	}
	if variable := setVariable(f); variable != "" {
		return "environment", variable
	}
	if _, ok := s.file.values[f.Name]; ok {
		return "file", s.file.name
	}
	return "default", ""
}

// setVariable returns the environment variable that sets a flag, if there is one.
func setVariable(f *kong.Flag) string {
	for _, name := range f.Envs {
		if _, ok := os.LookupEnv(name); ok {
			return name
		}
	}
	return ""
}

// settingsFile is a YAML file of settings. It implements kong.Resolver.
type settingsFile struct {
	name   string
	values map[string]string // by flag name
}

// Validate implements kong.Resolver; a file is checked when it is read.
func (settingsFile) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver. Kong would otherwise let a resolver override the environment.
func (s settingsFile) Resolve(_ *kong.Context, _ *kong.Path, f *kong.Flag) (any, error) {
	if v, ok := s.values[f.Name]; ok && setVariable(f) == "" {
		return v, nil
	}
	return nil, nil //nolint:nilnil // kong's way to say: not from here
}

// readSettings reads a file and checks every line of it, even if the flag is given elsewhere.
func readSettings(name string, flags map[string]*kong.Flag) (settingsFile, error) {
	s := settingsFile{name: name, values: map[string]string{}}
	text, err := os.ReadFile(name)
	if err != nil {
		return s, fmt.Errorf("cannot read the configuration file %s: %w", name, cause(err))
	}
	root, err := parse(text)
	if err != nil {
		return s, fmt.Errorf("%s %w", name, err)
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i].Value, root.Content[i+1]
		flag, ok := flags[key]
		if !ok {
			return s, fmt.Errorf("%s, line %d: there is no setting %q; there are %s", name, root.Content[i].Line, key, names(flags))
		}
		if _, ok := s.values[key]; ok {
			return s, fmt.Errorf("%s, line %d: %s is set a second time", name, root.Content[i].Line, key)
		}
		if err := check(flag, value); err != nil {
			return s, fmt.Errorf("%s, line %d: %s must be %w", name, root.Content[i].Line, key, err)
		}
		s.values[key] = value.Value
	}
	return s, nil
}

// parse returns the mapping that a file consists of.
func parse(text []byte) (*yaml.Node, error) {
	var doc, second yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return &yaml.Node{}, nil // an empty file, or nothing but comments
	}
	if err == nil && !errors.Is(d.Decode(&second), io.EOF) {
		return nil, errors.New("must be one YAML document")
	}
	if err != nil {
		return nil, fmt.Errorf("is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("must consist of lines like `listen: 127.0.0.1:8080`")
	}
	return doc.Content[0], nil
}

// check returns an error that says what the value must be, if it is not.
func check(f *kong.Flag, value *yaml.Node) error {
	target := reflect.New(f.Target.Type()).Elem()
	kind := target.Kind()
	if kind == reflect.Pointer {
		kind = target.Type().Elem().Kind()
	}
	tag, want := "!!str", "a text"
	switch {
	case f.IsBool():
		tag, want = "!!bool", "true or false"
	case kind == reflect.Int:
		tag, want = "!!int", "a whole number"
	case f.Enum != "":
		want = "one of " + strings.Join(f.EnumSlice(), ", ")
	}
	if value.Kind != yaml.ScalarNode || value.ShortTag() != tag || f.Enum != "" && !f.EnumMap()[value.Value] {
		return errors.New(want)
	}
	if f.Mapper.Decode(&kong.DecodeContext{Value: f.Value, Scan: kong.Scan().PushTyped(value.Value, kong.FlagValueToken)}, target) != nil {
		return errors.New(want)
	}
	return nil
}

// cause returns the innermost error, which is what a person needs to know.
func cause(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}

func names(flags map[string]*kong.Flag) string {
	var all []string
	for name := range flags {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
