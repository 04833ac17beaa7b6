package charttest

import (
	stdbufio "bufio"
	"os"
	"regexp"
	"strings"
	"testing"
)

func bufio(text string) *stdbufio.Reader { return stdbufio.NewReader(strings.NewReader(text)) }

// reference returns the variables that services/CONFIGURATION.md lists, and those of the command line's clients.
func reference(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../../services/CONFIGURATION.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"MINUTEHAND_SERVER": true, "MINUTEHAND_SERVER_CA": true}
	for _, name := range regexp.MustCompile("`(MINUTEHAND_[A-Z0-9_]+)`").FindAllStringSubmatch(string(text), -1) {
		known[name[1]] = true
	}
	return known
}
