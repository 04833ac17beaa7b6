package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// watched is a command that can go on showing what changes.
type watched struct {
	Watch bool `short:"w" help:"Show it again whenever it changes, until you press Ctrl-C."`
}

// watchEvery is the pause between two looks.
const watchEvery = 2 * time.Second

// show shows something once, or again and again. On a terminal it takes the place of what was shown before.
func (c *watched) show(ctx context.Context, look func(ctx context.Context) (answer any, err error), print func(answer any) error) error {
	var before []byte
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		answer, err := look(ctx)
		if err != nil {
			return err
		}
		if !c.Watch {
			return print(answer)
		}
		text, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		if first || !bytes.Equal(text, before) || terminal(os.Stdout) { // a terminal shows how time passes
			before = text
			if terminal(os.Stdout) {
				fmt.Print("\x1b[H\x1b[2J")
			}
			if err := print(answer); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// progressAfter is how long an answer may take before it is told that it is waited for.
const progressAfter = 2 * time.Second

// waiting tells on standard error, if that is a terminal, for how long something has been waited for. The function that it returns ends it.
func waiting(what string) (done func()) {
	if !terminal(os.Stderr) {
		return func() {}
	}
	over, ended := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressAfter / 4)
		defer tick.Stop()
		told := false
		for {
			select {
			case <-tick.C:
				if took := time.Since(began); took >= progressAfter {
					fmt.Fprintf(os.Stderr, "\r\x1b[Kwaiting for %s: %d s", what, int(took.Seconds()))
					told = true
				}
			case <-over:
				if told {
					fmt.Fprint(os.Stderr, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}
