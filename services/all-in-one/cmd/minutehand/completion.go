package main

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// scripts ask this binary for the words that fit, so that they know every command and never age.
//
//go:embed completion/minutehand.*
var scripts embed.FS

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell that the script is for."`
}

// Help implements kong.HelpProvider.
func (completionCmd) Help() string {
	return `The first line of the script says where to put it. Commands, flags and the values that a flag may have are
completed; anything else is taken to be a file.

  minutehand completion bash
  minutehand completion zsh
  minutehand completion fish`
}

// Run implements the command.
func (c *completionCmd) Run() error {
	text, err := scripts.ReadFile("completion/minutehand." + c.Shell)
	if err != nil {
		return err
	}
	fmt.Print(string(text))
	return nil
}

// completeCmd is what the scripts call: with the words of the command line up to the one that is to be completed.
type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:""`
}

// Run implements the command: a line for each word that fits, with its help after a tab.
func (c *completeCmd) Run(ctx *kong.Context) error {
	for _, w := range complete(ctx.Model.Node, c.Words) {
		fmt.Printf("%s\t%s\n", w.text, w.help)
	}
	return nil
}

// word is a word that may stand on the command line.
type word struct{ text, help string }

// complete lists what the last of the words may become; nothing where any text or file may stand.
func complete(node *kong.Node, words []string) []word {
	if len(words) == 0 {
		return nil
	}
	var open *kong.Flag // the flag whose value comes next
	arguments := 0
	last := len(words) - 1
	for _, w := range words[:last] {
		child := childNamed(node, w)
		switch {
		case w == "=": // bash takes --flag=value for three words
		case open != nil:
			open = nil
		case strings.HasPrefix(w, "-"):
			open = awaiting(node, w)
		case child != nil:
			node, arguments = child, 0
		default:
			arguments++
		}
	}
	begun := strings.TrimPrefix(words[last], "=")
	return slices.DeleteFunc(candidates(node, open, arguments, begun), func(w word) bool {
		return !strings.HasPrefix(w.text, begun)
	})
}

// candidates lists what may stand behind a command and so many arguments, or behind an open flag.
func candidates(node *kong.Node, open *kong.Flag, arguments int, begun string) []word {
	name, _, assigned := strings.Cut(begun, "=")
	switch {
	case open != nil:
		return valueWords(open.Value, "")
	case assigned && strings.HasPrefix(begun, "-"):
		if f := awaiting(node, name); f != nil {
			return valueWords(f.Value, name+"=")
		}
		return nil
	case strings.HasPrefix(begun, "-"):
		return flagWords(node)
	case arguments < len(node.Positional):
		return valueWords(node.Positional[arguments], "")
	case len(node.Children) == 0:
		return flagWords(node)
	}
	var all []word
	for _, c := range node.Children {
		if !c.Hidden {
			all = append(all, word{c.Name, c.Help})
		}
	}
	return all
}

func childNamed(node *kong.Node, name string) *kong.Node {
	i := slices.IndexFunc(node.Children, func(c *kong.Node) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return node.Children[i]
}

// awaiting is the flag that a word names, if a value must follow.
func awaiting(node *kong.Node, name string) *kong.Flag {
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			if !f.IsBool() && (name == "--"+f.Name || f.Short != 0 && name == "-"+string(f.Short)) {
				return f
			}
		}
	}
	return nil
}

func flagWords(node *kong.Node) []word {
	var all []word
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			all = append(all, word{"--" + f.Name, f.Help})
			if f.Tag.Negatable != "" {
				all = append(all, word{"--no-" + f.Name, "Not: " + f.Help})
			}
		}
	}
	return all
}

func valueWords(v *kong.Value, before string) []word {
	if v.Enum == "" {
		return nil
	}
	var all []word
	for _, e := range v.EnumSlice() {
		all = append(all, word{before + e, v.Help})
	}
	return all
}
