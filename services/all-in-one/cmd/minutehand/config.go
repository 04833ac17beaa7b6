package main

import (
	"fmt"
	"io"
	"net"
	"slices"
	"text/tabwriter"

	"github.com/alecthomas/kong"
)

type configCmd struct {
	settings
	output
}

// Help implements kong.HelpProvider.
func (configCmd) Help() string {
	return `Takes the flags of run, reads the same environment variables and the same file, and prints what run would go by:
each setting, its value, and where that came from. A flag goes before an environment variable, that before the file, and
that before the default. The token file is named, never read.

  minutehand config
  minutehand config --config minutehand.yaml --listen 127.0.0.1:9090
  minutehand config -o json`
}

// setting is a setting as config shows it.
type setting struct {
	Value  any    `json:"value"`
	Source string `json:"source"`         // flag, environment, file or default
	Name   string `json:"name,omitempty"` // of the variable, or of the file
}

// Run implements the command.
func (c *configCmd) Run(ctx *kong.Context) error {
	addr, err := net.ResolveTCPAddr("tcp", c.Listen)
	if err != nil {
		return usageError{fmt.Errorf("%s is not an address to listen on; choose another with --listen", c.Listen)}
	}
	private := c.privateTargets(addr)
	c.Private = &private
	all := map[string]setting{}
	var order []string
	for _, f := range ctx.Selected().Flags {
		if slices.Contains(notSettings, f.Name) {
			continue
		}
		kind, name := c.source(ctx, f)
		value := f.Target.Interface()
		if p, ok := value.(*bool); ok {
			value = *p
		}
		order = append(order, f.Name)
		all[f.Name] = setting{Value: value, Source: kind, Name: name}
	}
	return c.print(all, func(w io.Writer) {
		t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintln(t, "SETTING\tVALUE\tFROM")
		for _, name := range order {
			fmt.Fprintf(t, "%s\t%v\t%s\n", name, all[name].Value, all[name].from())
		}
		_ = t.Flush()
	})
}

func (s setting) from() string {
	switch s.Source {
	case "environment":
		return "environment variable " + s.Name
	case "file":
		return "file " + s.Name
	}
	return s.Source
}
