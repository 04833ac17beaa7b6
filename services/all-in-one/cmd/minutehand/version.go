package main

import (
	"fmt"
	"runtime"

	"github.com/minutehand/minutehand/libs/schedule"
)

// version is set when the binary is built.
var version = "dev"

type versionCmd struct{}

// Help implements kong.HelpProvider.
func (versionCmd) Help() string {
	return `The time zone data says when the clocks change; name it when a fire came an hour off.

  minutehand version`
}

// Run implements the command.
func (versionCmd) Run() error {
	fmt.Printf("minutehand %s, %s %s/%s, time zones %s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH,
		schedule.TZDataVersion())
	return nil
}
