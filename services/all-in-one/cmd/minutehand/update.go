package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"go.yaml.in/yaml/v3"
)

type updateCmd struct {
	jobRef
	jobFlags
}

// Help implements kong.HelpProvider.
func (updateCmd) Help() string {
	return `Changes what the flags or the file say, and nothing else; the file is a JSON merge patch, in which null takes a member away.
What falls due from then on follows the new definition. The command fails if somebody else changes the job meanwhile.

  minutehand jobs update JOB --cron '0 10 * * MON' --timezone Europe/Berlin
  minutehand jobs update JOB --max-attempts 3 --label team=payments
  minutehand jobs update JOB -f patch.yaml`
}

// Run implements the command.
func (c *updateCmd) Run(ctx context.Context) error {
	patch := map[string]any{}
	if c.File != "" {
		var err error
		if patch, err = readObject(c.File); err != nil {
			return usageError{err}
		}
	}
	if err := c.apply(patch); err != nil {
		return usageError{err}
	}
	if len(patch) == 0 {
		return usageError{errNothing}
	}
	if patch["type"] != nil { // what another kind of schedule had is not this one's
		others := []string{"delay", "run_at", "cron_expr", "every", "after", "after_mode"}
		if patch["type"] == "after" {
			others = append(others, "timezone", "dst", "start_at", "end_at", "max_occurrences", "jitter", "spread", "spread_within")
		}
		for _, member := range others {
			if _, ok := patch[member]; !ok {
				patch[member] = nil
			}
		}
	}
	if target, ok := patch["target"].(map[string]any); ok && target["kind"] != nil { // nor what another kind of target had
		for _, member := range []string{"url", "method", "connection", "topic", "key", "queue", "group"} {
			if _, ok := target[member]; !ok {
				target[member] = nil
			}
		}
	}
	header, err := c.do(ctx, http.MethodGet, c.path(""), nil, nil)
	if err != nil {
		return err
	}
	return c.patch(ctx, patch, header.Get("ETag"))
}

// patch changes the job as it was read, and shows it.
func (c *jobRef) patch(ctx context.Context, patch any, etag string) error {
	var j map[string]any
	if _, err := c.do(ctx, http.MethodPatch, c.path(""), patch, &j, "If-Match", etag, "Content-Type", "application/merge-patch+json"); err != nil {
		return err
	}
	return c.printJob(j)
}

type editCmd struct{ jobRef }

// Help implements kong.HelpProvider.
func (editCmd) Help() string {
	return `Opens the job as YAML in the editor that VISUAL or EDITOR names, and changes what was changed there when the editor ends.
An unchanged file changes nothing. The command fails if somebody else changes the job meanwhile.

  minutehand jobs edit JOB`
}

// readOnly are the members of a job that say how it stands, and cannot be changed.
var readOnly = []string{
	"job_id", "status", "definition_id", "effective_at", "next_run_at", "last_fired_at", "paused_at", "created_at", "updated_at",
}

// Run implements the command.
func (c *editCmd) Run(ctx context.Context) error {
	var job json.RawMessage
	header, err := c.do(ctx, http.MethodGet, c.path(""), nil, &job)
	if err != nil {
		return err
	}
	shown, err := editable(job)
	if err != nil {
		return err
	}
	edited, err := edit(ctx, shown)
	if err != nil {
		return err
	}
	patch, err := changes(job, edited)
	if err != nil {
		return err
	}
	if bytes.Equal(patch, []byte("{}")) {
		fmt.Fprintln(os.Stderr, "nothing was changed")
		return nil
	}
	return c.patch(ctx, json.RawMessage(patch), header.Get("ETag"))
}

// editable is what can be changed of a job, as YAML.
func editable(job []byte) ([]byte, error) {
	object, err := definition(job)
	if err != nil {
		return nil, err
	}
	return toYAML(object)
}

// definition is a job without what says how it stands, its values as they are written.
func definition(job []byte) (object map[string]json.RawMessage, err error) {
	if err = json.Unmarshal(job, &object); err != nil {
		return nil, err
	}
	for _, name := range readOnly {
		delete(object, name)
	}
	return object, nil
}

// changes is the merge patch from a job to what was edited. It is made of what both look like as YAML, so that a value which only YAML
// writes in another way is no change.
func changes(job, edited []byte) ([]byte, error) {
	shown, err := editable(job)
	if err != nil {
		return nil, err
	}
	var documents [2][]byte
	for i, text := range [2][]byte{shown, edited} {
		var v map[string]any
		if err := yaml.Unmarshal(text, &v); err != nil {
			return nil, usageError{fmt.Errorf("what was edited is not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))}
		}
		if documents[i], err = json.Marshal(v); err != nil {
			return nil, err
		}
	}
	return jsonpatch.CreateMergePatch(documents[0], documents[1])
}

// edit lets a person edit a text in the editor of their choice.
func edit(ctx context.Context, text []byte) (edited []byte, err error) {
	editor := os.Getenv("VISUAL")
	if editor == "" {
		editor = os.Getenv("EDITOR")
	}
	if editor == "" {
		return nil, usageError{errors.New("no editor is known; name one in EDITOR, like EDITOR=nano")}
	}
	f, err := os.CreateTemp("", "minutehand-*.yaml")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	words := append(strings.Fields(editor), f.Name())
	e := exec.CommandContext(ctx, words[0], words[1:]...) //nolint:gosec // the editor that its user names
	e.Stdin, e.Stdout, e.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := e.Run(); err != nil {
		return nil, fmt.Errorf("the editor %s failed, and nothing was changed: %w", words[0], err)
	}
	return os.ReadFile(f.Name())
}
