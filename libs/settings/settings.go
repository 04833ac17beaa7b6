// Package settings reads what an operator may set: by flag, by environment variable or in a YAML file. The former takes precedence
// over the latter. A setting is a field of a struct whose tags state the rest, as in kong; a key of the file is the name of a flag.
package settings

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"

	"github.com/minutehand/minutehand/libs/bucket"
)

// Prefix of all variables.
const Prefix = "MINUTEHAND_"

// Defaults are the values of defaults that more than one program has, which stand in tags as ${partitions}.
func Defaults() kong.Vars { return kong.Vars{"partitions": strconv.Itoa(bucket.DefaultPartitions)} }

// Addresses are one or more of the form host:port. Their text separates them by commas.
type Addresses []string

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Addresses) UnmarshalText(text []byte) error {
	*a = nil
	for item := range strings.SplitSeq(string(text), ",") {
		if item = strings.TrimSpace(item); item == "" {
			return errors.New("must be addresses like 127.0.0.1:9042, separated by commas")
		}
		*a = append(*a, item)
	}
	return nil
}

// String implements fmt.Stringer.
func (a Addresses) String() string { return strings.Join(a, ",") }

// Count is a whole number of at least 1.
type Count int

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Count) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 1 {
		return errors.New("must be a whole number of at least 1")
	}
	*c = Count(n)
	return nil
}

// Duration is a length of time over 0.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v <= 0 {
		return errors.New("must be a length of time like 90s or 5m")
	}
	*d = Duration(v)
	return nil
}

// String implements fmt.Stringer.
func (d Duration) String() string { return time.Duration(d).String() }

// SecretFile is the name of a file that holds a secret; empty for none.
type SecretFile string

// ErrSecret means: a file that should hold a secret cannot be read, or is empty.
var ErrSecret = errors.New("must be a file that can be read and holds a secret")

// Read returns the contents of the file, without surrounding space. Nothing else of a secret is ever shown.
func (f SecretFile) Read() (string, error) {
	if f == "" {
		return "", nil
	}
	text, err := os.ReadFile(string(f))
	secret := strings.TrimSpace(string(text))
	if err != nil || secret == "" {
		return "", fmt.Errorf("%s %w", string(f), ErrSecret)
	}
	return secret, nil
}

// Describe returns the help of a flag or an argument with its possible values, its default and its variable. It is a
// kong.HelpValueFormatter.
func Describe(v *kong.Value) string {
	var notes []string
	if v.Enum != "" {
		notes = append(notes, strings.Join(v.EnumSlice(), ", "))
	}
	if v.Default != "" {
		notes = append(notes, "default "+v.Default)
	}
	if notes = append(notes, v.Tag.Envs...); len(notes) == 0 {
		return v.Help
	}
	return strings.TrimSuffix(v.Help, ".") + " (" + strings.Join(notes, "; ") + ")."
}

// Value is a setting as shown.
type Value struct {
	Value  any    `json:"value"`
	Source string `json:"source"`         // flag, environment, file or default
	Name   string `json:"name,omitempty"` // of the variable, or of the file
}

// From returns in words where the value came from.
func (v Value) From() string {
	switch v.Source {
	case "environment":
		return "environment variable " + v.Name
	case "file":
		return "file " + v.Name
	}
	return v.Source
}

// Values returns the parsed settings by their names, and the names in order.
func (s *File) Values(ctx *kong.Context) (all map[string]Value, order []string) {
	all = map[string]Value{}
	for _, f := range flags(ctx) {
		if slices.Contains(notSettings, f.Name) {
			continue
		}
		kind, name := s.source(ctx, f)
		value := f.Target.Interface()
		if p, ok := value.(*bool); ok {
			value = *p
		}
		order = append(order, f.Name)
		all[f.Name] = Value{Value: value, Source: kind, Name: name}
	}
	return all, order
}

// flags returns the flags of the command that was chosen, or of a program without commands.
func flags(ctx *kong.Context) []*kong.Flag {
	if node := ctx.Selected(); node != nil {
		return node.Flags
	}
	return ctx.Model.Flags
}

// Print prints settings for a person.
func Print(w io.Writer, all map[string]Value, order []string) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "SETTING\tVALUE\tFROM")
	for _, name := range order {
		fmt.Fprintf(t, "%s\t%v\t%s\n", name, all[name].Value, all[name].From())
	}
	_ = t.Flush()
}

// Reference prints a table of the settings, in Markdown.
func Reference(w io.Writer, ctx *kong.Context) {
	fmt.Fprint(w, "| flag, key of the file | variable | default | |\n|---|---|---|---|\n")
	for _, f := range flags(ctx) {
		if slices.Contains(notSettings, f.Name) {
			continue
		}
		value := ""
		if f.Default != "" {
			value = "`" + f.Default + "`"
		}
		help := f.Help
		if f.Enum != "" {
			help = strings.TrimSuffix(help, ".") + ": " + strings.Join(f.EnumSlice(), ", ") + "."
		}
		fmt.Fprintf(w, "| `%s` | `%s` | %s | %s |\n", f.Name, strings.Join(f.Envs, "`, `"), value, help)
	}
}
