package s3_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/minutehand/minutehand/libs/adapters/s3"
)

func TestCheckTellsTheReasonAfterOneTry(t *testing.T) {
	var tries atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		tries.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	a, err := s3.NewArchive(t.Context(), s3.Options{
		Bucket: "archive", Region: "us-east-1", Endpoint: server.URL, AccessKey: "user", SecretKey: "password",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err = a.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a server that has trouble: %v", err)
	}
	if n := tries.Load(); n != 1 {
		t.Errorf("it was tried %d times", n)
	}
}
