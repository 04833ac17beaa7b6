package sim

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// Around an update two definitions may share an instant. An entry of the former one is dropped at once.
func TestWorkerHasAnInstantInHandAlsoAfterItDroppedThatOfAnotherDefinition(t *testing.T) {
	at := time.Now()
	held := span{Window: ledger.Window{From: at, To: at.Add(30 * time.Second)}, worker: "w"}
	claimed := deed{worker: "w", jobID: "j", definition: "new", nominal: at, at: at, kind: claims}
	for _, c := range []struct {
		left string
		want bool
	}{{"old", true}, {"new", false}} {
		left := claimed
		left.definition, left.kind = c.left, leaves
		w := &world{deeds: []deed{claimed, left}}
		if got := w.had(held, "j"); got != c.want {
			t.Errorf("after it left the instant of the %s definition: in hand %v, want %v", c.left, got, c.want)
		}
	}
}
