package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// table is a table for people. Its first row is the header.
type table struct {
	t *tabwriter.Writer
	// coloured says that the reader is a terminal that shows colours.
	coloured bool
}

func newTable(w io.Writer, header ...any) *table {
	t := &table{tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.StripEscape), colours(w)}
	for i, cell := range header {
		if name, ok := cell.(status); ok {
			header[i] = t.paint(string(name), plain)
		}
	}
	t.line(header)
	return t
}

// row adds a row, as many cells as the header has. Every cell is escaped; a status is shown in its colour.
func (t *table) row(cells ...any) {
	for i, cell := range cells {
		if s, ok := cell.(status); ok {
			cells[i] = t.paint(shown(string(s)), s.colour())
		} else {
			cells[i] = shown(cell)
		}
	}
	t.line(cells)
}

func (t *table) line(cells []any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(t.t, "\t")
		}
		fmt.Fprint(t.t, cell)
	}
	fmt.Fprintln(t.t)
}

func (t *table) end() { _ = t.t.Flush() }

// status is a cell, or its header, whose colour says whether all is well.
type status string

const (
	plain  = "39"
	green  = "32"
	yellow = "33"
	red    = "31"
)

func (s status) colour() string {
	switch s {
	case "active", "succeeded", "completed", "fine", "closed":
		return green
	case "paused", "retrying", "running", "dispatched", "skipped", "notice":
		return yellow
	case "dead", "cancelled", "failed", "timed_out", "worker_lost", "wrong", "open":
		return red
	}
	return plain
}

// paint colours a cell. Every cell of a column takes as many characters for it, so that the columns stay straight.
func (t *table) paint(text, colour string) string {
	if !t.coloured {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// colours reports whether w is a terminal that shows colours. NO_COLOR is https://no-color.org.
func colours(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && terminal(f) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

func terminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// pairs shows a map as NAME=VALUE, with commas.
func pairs(parts map[string]any) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		all = append(all, fmt.Sprintf("%s=%v", name, parts[name]))
	}
	return strings.Join(all, ",")
}
