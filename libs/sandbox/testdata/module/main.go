// Command module tries what a WebAssembly module could try that wants to get out of its sandbox, or use more than it may.
package main

import (
	"crypto/rand"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

func main() {
	var err error
	switch os.Args[1] {
	case "hello":
		text, _ := io.ReadAll(os.Stdin)
		print(string(text), " ", os.Getenv("NAME"), " ", strings.Join(os.Args[2:], " "), "\n")
		os.Stdout.WriteString("a word on the other stream")
		os.Exit(3)
	case "read":
		_, err = os.ReadFile(os.Args[2])
	case "list":
		_, err = os.ReadDir("/")
	case "write":
		err = os.WriteFile(os.Args[2], []byte("x"), 0o600)
	case "environment":
		if !strings.Contains(strings.Join(os.Environ(), "\n"), os.Args[2]) {
			err = errors.New("no environment has the word")
		}
	case "memory":
		var all [][]byte
		for range 1024 {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			all = append(all, b)
		}
		runtime.KeepAlive(all)
	case "burn":
		for n := 1; n != 0; n |= 1 {
		}
	case "random":
		os.Stdout.WriteString(rand.Text())
		return
	case "sleep":
		time.Sleep(time.Hour)
	case "flood":
		for {
			os.Stdout.WriteString(strings.Repeat("flood ", 1000))
		}
	}
	if err != nil {
		os.Stdout.WriteString("contained: " + err.Error())
		return
	}
	os.Stdout.WriteString("escaped")
}
