package main

import "context"

type demoCmd struct{}

// Run implements the command.
func (demoCmd) Run(context.Context) error { return nil }
