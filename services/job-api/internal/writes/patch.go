package writes

import (
	"bytes"
	"context"
	"encoding/json"
	"math"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// patchJob merges the body into the definition as the API shows it, and checks the result like a replacement.
func (ws *Writes) patchJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	return ws.update(ctx, r, func(j *job.Job) (text []byte, keepBody bool, err error) {
		current, err := json.Marshal(form.Of(j))
		if err != nil {
			return nil, false, err
		}
		tree, err := edge.Decode(current, math.MaxInt)
		if err != nil {
			return nil, false, err
		}
		merged := mergePatch(tree, r.Tree)
		if m, ok := merged.(map[string]any); ok {
			p, _ := r.Tree.(map[string]any)
			if p["delay"] != nil && p["run_at"] == nil {
				delete(m, "run_at") // a new delay replaces the instant that the old one was resolved to
			}
			if key, set := p["key"]; set && key == nil && j.Key != "" {
				return nil, false, fixedKey()
			}
		}
		if p := edge.Invalid(ws.deps.Document.CheckBody("replaceJob", merged)); p != nil {
			return nil, false, p
		}
		keepBody = takeBody(merged, r.Tree)
		text, err = encodeTree(merged)
		return text, keepBody, err
	})
}

// takeBody removes the target's body from a merged definition unless the patch sets it: encoding it again would change its
// bytes, and it is not measured in that form. taken reports whether it did.
func takeBody(merged, patch any) (taken bool) {
	member := func(tree any, name string) map[string]any {
		m, _ := tree.(map[string]any)
		inner, _ := m[name].(map[string]any)
		return inner
	}
	target := member(merged, "target")
	_, there := target["body"]
	if _, set := member(patch, "target")["body"]; set || !there {
		return false
	}
	delete(target, "body")
	return true
}

// encodeTree encodes without the escapes that only HTML needs.
func encodeTree(tree any) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	err := e.Encode(tree)
	return text.Bytes(), err
}

// mergePatch implements RFC 7396.
func mergePatch(target, patch any) any {
	members, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	result, ok := target.(map[string]any)
	if !ok {
		result = map[string]any{}
	}
	for name, value := range members {
		if value == nil {
			delete(result, name)
			continue
		}
		result[name] = mergePatch(result[name], value)
	}
	return result
}
