package main

import (
	"fmt"
	"io"
	"net"
	"os"

	"github.com/alecthomas/kong"

	"github.com/minutehand/minutehand/libs/settings"
)

type configCmd struct {
	runSettings
	output
	PrintReference bool `hidden:"" help:"Print a table of the settings, and exit."`
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

// Run implements the command.
func (c *configCmd) Run(ctx *kong.Context) error {
	if c.PrintReference {
		settings.Reference(os.Stdout, ctx)
		return nil
	}
	addr, err := net.ResolveTCPAddr("tcp", c.Listen)
	if err != nil {
		return usageError{fmt.Errorf("%s is not an address to listen on; choose another with --listen", c.Listen)}
	}
	private := c.privateTargets(addr)
	c.Private = &private
	all, order := c.Values(ctx)
	return c.print(all, func(w io.Writer) { settings.Print(w, all, order) })
}
