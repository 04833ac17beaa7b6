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
)

func TestConsumersTellHowFarTheyLieBehindTheLog(t *testing.T) {
	f := newInstallation(t).fleet()
	f.awaitCalls(f.register([]map[string]any{f.oneShot(time.Now().Add(time.Second), "/ok")}))
	for group, service := range map[string]string{
		dispatch.GroupExecutor: "executor", dispatch.GroupSettle: "retry-manager",
		dispatch.GroupHistory: "audit-writer", dispatch.GroupArchive: "audit-writer",
	} {
		want := fmt.Sprintf("minutehand_log_lag_records{group=%q,topic=%q} 0\n", group, dispatch.TopicOf(group))
		if group == dispatch.GroupArchive { // it commits what lies in an object, once a minute
			want = strings.TrimSuffix(want, "0\n")
		}
		eventually(t, group+" tells", time.Minute, func() bool {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.Member(service, 1).Admin+"/metrics", nil)
			f.must(err)
			resp, err := http.DefaultClient.Do(r)
			f.must(err)
			text, err := io.ReadAll(resp.Body)
			f.must(err)
			f.must(resp.Body.Close())
			return strings.Contains(string(text), want)
		})
	}
}
