package main

import (
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/minutehand/minutehand/libs/certificates/certificatestest"
)

// certify writes NAME.pem and NAME.key for each argument NAME or NAME=URI: the first is an authority, which signs the others.
func certify(ts *testscript.TestScript, _ bool, args []string) {
	a, err := certificatestest.New(ts.MkAbs("."), args[0])
	ts.Check(err)
	for _, arg := range args[1:] {
		name, uri, _ := strings.Cut(arg, "=")
		_, err := a.Issue(name, uri)
		ts.Check(err)
	}
}
