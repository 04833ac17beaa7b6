// Command serve is the process of a module, as the runner starts it.
package main

import (
	"fmt"
	"os"

	"github.com/minutehand/minutehand/libs/sandbox"
)

func main() {
	if err := sandbox.ServeWasm(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
