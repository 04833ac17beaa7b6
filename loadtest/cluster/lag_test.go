//go:build servers

package cluster_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/loadtest/fleet"
)

func TestServicesTellHowFarTheyLieBehindTheLogAndWhatTheirCallsTake(t *testing.T) {
	f := newInstallation(t).fleet()
	f.awaitCalls(f.register([]map[string]any{f.oneShot(time.Now().Add(time.Second), "/ok")}))
	for group, service := range map[string]string{
		dispatch.GroupExecutor: "executor", dispatch.GroupSettle: "retry-manager",
		dispatch.GroupHistory: "audit-writer", dispatch.GroupArchive: "audit-writer",
	} {
		want := fmt.Sprintf("minutehand_log_lag_records{group=%q,topic=%q} 0\n", group, dispatch.TopicOf(group))
		if group == dispatch.GroupArchive { // it commits what is in an object, once a minute
			want = strings.TrimSuffix(want, "0\n")
		}
		eventually(t, group+" tells", time.Minute, func() bool { return strings.Contains(f.scrape(f.Member(service, 1)), want) })
	}
	// The calls of the ports are measured in the processes of the services.
	for service, call := range map[string][2]string{
		"job-api": {"jobs", "CreateMany"}, "bucket-loader": {"hot buckets", "Incarnations"}, "scheduler-worker": {"log", "Publish"},
		"executor": {"records", "Begin"}, "retry-manager": {"log", "Commit"}, "audit-writer": {"history", "Record"},
	} {
		text := f.scrape(f.Member(service, 0)) + f.scrape(f.Member(service, 1))
		line := fmt.Sprintf(`minutehand_port_call_seconds_count{operation=%q,port=%q} `, call[1], call[0])
		if !strings.Contains(text, line) {
			t.Errorf("%s does not tell of its calls: %s", service, line)
		}
	}
}

// scrape returns a process's metrics.
func (f *platform) scrape(m *fleet.Member) string {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, "http://"+m.Admin+"/metrics", nil)
	f.must(err)
	resp, err := http.DefaultClient.Do(r)
	f.must(err)
	text, err := io.ReadAll(resp.Body)
	f.must(err)
	f.must(resp.Body.Close())
	return string(text)
}

// metric returns a process's metric without labels.
func (f *platform) metric(m *fleet.Member, name string) (value float64) {
	f.t.Helper()
	for line := range strings.Lines(f.scrape(m)) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			_, err := fmt.Sscan(text, &value)
			f.must(err)
			return value
		}
	}
	f.t.Fatalf("%s does not tell %s", m, name)
	return 0
}
