//go:build servers

package s3_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/archive/archivetest"
)

var buckets atomic.Int64

// open creates a bucket of its own on the server that infra/local started.
func open(t *testing.T) *s3.Archive {
	t.Helper()
	o := s3.Options{
		Bucket:   fmt.Sprintf("minutehand-test-%d-%d", time.Now().UnixNano(), buckets.Add(1)),
		Region:   "us-east-1",
		Endpoint: "http://" + servertest.Address(t, "S3"), AccessKey: "minutehand", SecretKey: "minutehand-local",
	}
	a, err := s3.NewArchive(t.Context(), o)
	if err == nil {
		err = a.CreateBucket(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestConformance(t *testing.T) {
	archivetest.Run(t, func(t *testing.T) archive.Archive { return open(t) })
}

func TestBucketThatIsNotThereIsTold(t *testing.T) {
	a := open(t)
	if err := a.Check(t.Context()); err != nil {
		t.Errorf("a bucket that is there: %v", err)
	}
	o := s3.Options{
		Bucket: "minutehand-nothing", Region: "us-east-1", Endpoint: "http://" + servertest.Address(t, "S3"),
		AccessKey: "minutehand", SecretKey: "minutehand-local",
	}
	nothing, err := s3.NewArchive(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := nothing.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "minutehand-nothing") {
		t.Errorf("a bucket that is not there: %v", err)
	}
}
