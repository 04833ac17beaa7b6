//go:build servers

package s3_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/archive"
)

func TestObjectsThatWerePutOverABadNetworkAreThere(t *testing.T) {
	o := s3.Options{
		Bucket: servertest.Unique("minutehand-test-"), Region: "us-east-1", Endpoint: "http://" + servertest.Address(t, "S3"),
		AccessKey: "minutehand", SecretKey: "minutehand-local",
	}
	calm, err := s3.NewArchive(t.Context(), o)
	if err == nil {
		err = calm.CreateBucket(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	var put int
	servertest.NoLeak(t, func() {
		p := servertest.NewProxy(t, servertest.Address(t, "S3"))
		o.Endpoint, o.Timeout = "http://"+p.Address(), 10*time.Second
		a, err := s3.NewArchive(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		const limit = 15 * time.Second
		put = servertest.UnderFaults(t, p, limit, func(ctx context.Context, i int) error {
			name := fmt.Sprintf("audit/%06d", i)
			err := a.PutIfAbsent(ctx, name, []byte("object"))
			if err != nil && !errors.Is(err, archive.ErrExists) { // otherwise the previous try had taken effect
				return err
			}
			object, err := a.Open(ctx, name)
			if err != nil {
				return err
			}
			body := make([]byte, 6)
			if _, err := object.ReadAt(body, 0); err != nil {
				return errors.Join(err, object.Close())
			}
			if string(body) != "object" {
				t.Errorf("%s holds %q", name, body)
			}
			return object.Close()
		})
		p.Cut() // the driver keeps idle connections
	})
	names, err := calm.List(t.Context(), "audit/")
	if err != nil || len(names) != put {
		t.Errorf("%d of %d objects are there (%v)", len(names), put, err)
	}
}
