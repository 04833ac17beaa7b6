package s3

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/diagnosis"
)

const (
	diagnoseWithin = 8 * time.Second
	// probe is an object that is put again by each diagnosis, and must be refused from the second time on.
	probe = "doctor/put-if-absent"
)

// Diagnose examines the bucket, also whether it keeps what is there: it puts a small object, doctor/put-if-absent, twice.
func Diagnose(ctx context.Context, o Options, r *diagnosis.Report) {
	ctx, cancel := context.WithTimeout(ctx, diagnoseWithin)
	defer cancel()
	subject := "s3 bucket " + o.Bucket
	a, err := NewArchive(ctx, o)
	if err == nil {
		err = a.Check(ctx)
	}
	if err != nil {
		r.Wrong(subject, "minutehand migrate makes it; otherwise see runbooks/MinutehandArchiveBehind.md", "it cannot be used: %v", err)
		return
	}
	put := func() error {
		return a.PutIfAbsent(ctx, probe, []byte("minutehand doctor puts this object twice, and the second time must be refused\n"))
	}
	if err = put(); err == nil {
		err = put()
	}
	switch {
	case errors.Is(err, archive.ErrExists):
		r.Fine(subject, "it can be written, and replaces no object")
	case err == nil:
		r.Wrong(subject, "use a server that knows If-None-Match, as Amazon's does", "it replaces objects that are there: an object of the archive could be written twice")
	default:
		r.Wrong(subject, "allow s3:PutObject", "it cannot be written: %v", err)
	}
}
