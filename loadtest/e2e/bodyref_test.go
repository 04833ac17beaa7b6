package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/e2e/world"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

func TestObjectIsSentInPlaceOfTheBodyOfAJob(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		const host = "objects-are-sent.example"
		w.Targets.Set(host, func(r *http.Request, _ ledger.Call) (int, error) {
			text, err := io.ReadAll(r.Body)
			if err != nil {
				return 0, err
			}
			if string(text) != world.Object {
				w.T.Errorf("the target got %q", text)
			}
			return http.StatusOK, nil
		})
		of := func(text string) map[string]any {
			sum := sha256.Sum256([]byte(text))
			return map[string]any{"url": "https://elsewhere.example/object", "sha256": hex.EncodeToString(sum[:])}
		}
		called := func(name, text string) string {
			return w.Create(map[string]any{
				"name": name, "type": "one_shot", "run_at": time.Now().Add(10 * time.Second),
				"target": map[string]any{"kind": "http_webhook", "url": "http://" + host + "/", "body_ref": of(text)},
			})
		}
		sent, another := called("sent", world.Object), called("another", "another object")
		task := pooled("fetched", "a", oneShot(10*time.Second))
		target := task["target"].(map[string]any)
		delete(target, "body")
		target["body_ref"] = of(world.Object)
		fetched := w.Create(task)
		x := w.NewWorker("work", "worker", "a")
		for done := false; !done; {
			tasks, _ := x.Poll(1, "20s")
			for _, one := range tasks {
				if done = true; one.Reference != of(world.Object)["sha256"] || one.Complete(nil) != http.StatusNoContent {
					w.T.Errorf("the worker got %+v", one)
				}
			}
		}
		time.Sleep(time.Minute)
		for id, want := range map[string]string{sent: "succeeded", another: "dead", fetched: "succeeded"} {
			if got := state(w, id); got != want {
				w.T.Errorf("an execution is %v, want %s: %v", got, want, w.Executions(id))
			}
		}
		time.Sleep(time.Minute)
	})
}
