package messaging_test

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/minutehand/minutehand/libs/messaging"
)

func TestTenantHasAHundredConnectionsAtMost(t *testing.T) {
	var set messaging.Set
	for n := range messaging.MaxConnections {
		if err := set.Put(&messaging.Connection{Name: "c" + strconv.Itoa(n), Kafka: &messaging.Kafka{}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.Put(&messaging.Connection{Name: "c0", Kafka: &messaging.Kafka{TLS: true}}); err != nil {
		t.Errorf("one that is replaced: %v", err)
	}
	if err := set.Put(&messaging.Connection{Name: "one-more", SQS: &messaging.SQS{}}); !errors.Is(err, messaging.ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
}

func TestConnectionsTakeABoundedAmountOfRoom(t *testing.T) {
	var set messaging.Set
	large := strings.Repeat("x", messaging.MaxSetBytes)
	if err := set.Put(&messaging.Connection{Name: "a", Kafka: &messaging.Kafka{CA: large}}); !errors.Is(err, messaging.ErrTooMany) {
		t.Errorf("%v", err)
	}
}

// A later release may have connections of another kind, and other members.
func TestWhatALaterReleaseWroteStaysWhereAnotherConnectionIsChanged(t *testing.T) {
	const later = `{"pulsar":{"url":"x"},"updated_at":"2000-01-01T00:00:00Z"}`
	set := messaging.Set{Connections: map[string]json.RawMessage{"later": json.RawMessage(later)}}
	if err := set.Put(&messaging.Connection{Name: "a", SQS: &messaging.SQS{}}); err != nil {
		t.Fatal(err)
	}
	var r *messaging.Refusal
	if _, err := set.Get("later"); !errors.As(err, &r) || r.Permanent {
		t.Errorf("%v", err)
	}
	if value, err := json.Marshal(set); err != nil || !strings.Contains(string(value), later) {
		t.Errorf("%s, %v", value, err)
	}
}
