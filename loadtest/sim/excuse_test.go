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

func TestExcuseLastsUntilTheOtherChainIsDecided(t *testing.T) {
	at := time.Now()
	wrote := deed{worker: "w", jobID: "j", nominal: at.Add(-20 * time.Second), at: at.Add(30 * time.Second), kind: writes}
	other := deed{worker: "v", jobID: "j", nominal: at, at: at.Add(2 * time.Minute), kind: writes}
	later := deed{worker: "v", jobID: "j", nominal: at.Add(time.Minute), at: at.Add(3 * time.Minute), kind: writes}
	w := &world{deeds: []deed{other, wrote, later}}
	if got := w.decided(wrote, wrote.at); !got.Equal(other.at) {
		t.Errorf("it ends %s after the instant, want %s", got.Sub(at), other.at.Sub(at))
	}
}
