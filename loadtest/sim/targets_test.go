package sim

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

// The judge counts how often an owner was called that cannot take a notification: one that hangs was called, as one that answers was.
func TestOwnerThatHangsIsOnRecordAsCalled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so what hangs ends at once
	w := &world{faults: &Faults{dice: dice{1}}, told: map[string]int{}}
	hung := 0
	for calls := 1; calls <= 100; calls++ {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://team.j01/", strings.NewReader(`{"notification_id": "ntf_1", "cause": "sla_missed"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", "ntf_1")
		r.Header.Set("Minutehand-Hops", "1")
		resp, err := w.notified(&process{name: "bucket-loader-1"}, r)
		if len(w.notifications) != calls {
			t.Fatalf("%d calls are on record after %d, the last of which ended with %v", len(w.notifications), calls, err)
		}
		if err == nil {
			if err := resp.Body.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if hung++; w.notifications[calls-1].Accepted || w.notifications[calls-1].Refused {
			t.Errorf("call %d hung, and is on record as answered", calls)
		}
	}
	if hung == 0 {
		t.Error("no call hung")
	}
	if len(w.broken) > 0 {
		t.Errorf("%v", w.broken)
	}
}
