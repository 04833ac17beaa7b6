package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A payload is its owner's: what a file holds is sent as it stands, also a number that no float64 holds.
func TestNumbersOfAFileAreSentAsTheyStand(t *testing.T) {
	const number = "1234567890123456789"
	for name, text := range map[string]string{
		"array.json": `[{"body": ` + number + `}]`, "objects.json": `{"body": ` + number + `}`, "list.yaml": "- body: " + number, "one.yaml": "body: " + number,
	} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		objects, err := readObjects(file)
		if err != nil {
			t.Fatal(err)
		}
		sent, err := json.Marshal(objects)
		if err != nil || !strings.Contains(string(sent), number) {
			t.Errorf("%s is sent as %s (%v)", name, sent, err)
		}
	}
}

// What an editor is shown of a job, and gives back unchanged, changes nothing of it.
func TestJobThatIsEditedWithoutAChangeStaysAsItIs(t *testing.T) {
	const job = `{"name":"true","start_at":"2030-01-01T00:00:00.830Z","target":{"body":[1234567890123456789,1.50,"12","\u2028"],"headers":{"X":"0x10"}}}`
	shown, err := editable([]byte(job))
	if err != nil {
		t.Fatal(err)
	}
	if patch, err := changes([]byte(job), shown); err != nil || string(patch) != "{}" {
		t.Errorf("the patch is %s (%v), of what was shown as\n%s", patch, err, shown)
	}
}
