// Package s3 keeps the audit archive in a bucket of S3, or of a server that speaks its protocol and has conditional writes.
package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/run"
)

// Options say where the archive is.
type Options struct {
	Bucket string
	// Region of the bucket; Endpoint of a server other than Amazon's, whose buckets are then named by path.
	Region, Endpoint string
	// AccessKey and SecretKey; if both are empty, the machine's own are used (environment, profile, role).
	AccessKey, SecretKey string
	// TLS makes the connections to an https endpoint; nil for the usual way.
	TLS *certificates.Client
	// Timeout bounds one request, including all its tries; 0 means 30 s.
	Timeout time.Duration
}

// Archive keeps objects in a bucket. A put is conditional: S3 accepts it whole if there is no object with that name.
type Archive struct {
	client *s3.Client
	bucket string
	// where names the bucket and its server in errors.
	where   string
	timeout time.Duration
}

var _ archive.Archive = (*Archive)(nil)

// connectTimeout bounds the making of a connection.
const connectTimeout = 5 * time.Second

// NewArchive returns an archive. It sends nothing to the bucket; see [Archive.Check].
func NewArchive(ctx context.Context, o Options) (*Archive, error) {
	options := []func(*config.LoadOptions) error{
		config.WithRegion(o.Region),
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
			t.ResponseHeaderTimeout = 10 * time.Second
			if o.TLS != nil {
				t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
					ctx, cancel := context.WithTimeout(ctx, connectTimeout)
					defer cancel()
					return o.TLS.Dial(ctx, network, address)
				}
			}
		}).WithDialerOptions(func(d *net.Dialer) { d.Timeout = connectTimeout })),
	}
	if o.AccessKey != "" {
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(o.AccessKey, o.SecretKey, "")))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("s3: %w", err)
	}
	client := s3.NewFromConfig(cfg, func(so *s3.Options) {
		so.DisableLogOutputChecksumValidationSkipped = true
		if o.Endpoint != "" {
			so.BaseEndpoint, so.UsePathStyle = aws.String(o.Endpoint), true
		}
	})
	timeout := o.Timeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	where := o.Bucket
	if o.Endpoint != "" {
		where += " at " + o.Endpoint
	}
	return &Archive{client: client, bucket: o.Bucket, where: where, timeout: timeout}, nil
}

// Check reports whether the bucket exists and may be read. It tries once: who asks again and again whether a process is ready
// waits for seconds only, and the pauses between several tries would end with these seconds instead of with the reason.
func (a *Archive) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	once := func(o *s3.Options) { o.RetryMaxAttempts = 1 }
	if _, err := a.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &a.bucket}, once); err != nil {
		return fmt.Errorf("s3: bucket %s: %w", a.where, err)
	}
	return nil
}

// CreateBucket creates the bucket, unless it exists and belongs to this account.
func (a *Archive) CreateBucket(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	_, err := a.client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &a.bucket})
	var owned *types.BucketAlreadyOwnedByYou
	if err != nil && !errors.As(err, &owned) {
		return fmt.Errorf("s3: create bucket %s: %w", a.bucket, err)
	}
	return nil
}

// conflictPause is the pause before a put is retried that met another one of the same name.
const conflictPause = 100 * time.Millisecond

// PutIfAbsent implements archive.Archive. A put whose answer is lost is retried and finds its own object: ErrExists.
func (a *Archive) PutIfAbsent(ctx context.Context, name string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	for {
		_, err := a.client.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &a.bucket, Key: &name, Body: bytes.NewReader(body), ContentLength: aws.Int64(int64(len(body))),
			IfNoneMatch: aws.String("*"),
		})
		switch {
		case err == nil:
			return nil
		case answered(err, http.StatusPreconditionFailed):
			return fmt.Errorf("s3: put %s: %w", name, archive.ErrExists)
		case answered(err, http.StatusConflict) && run.Sleep(ctx, conflictPause) == nil:
			continue // another put of that name is in flight: one of the two stands in a moment
		default:
			return fmt.Errorf("s3: put %s: %w", name, err)
		}
	}
}

func answered(err error, status int) bool {
	var response *awshttp.ResponseError
	return errors.As(err, &response) && response.HTTPStatusCode() == status
}

func absent(err error) bool {
	var api smithy.APIError
	return answered(err, http.StatusNotFound) || errors.As(err, &api) && (api.ErrorCode() == "NoSuchKey" || api.ErrorCode() == "NotFound")
}

// Open implements archive.Archive. The object is read in parts, as they are asked for.
func (a *Archive) Open(ctx context.Context, name string) (archive.Object, error) {
	asked, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	head, err := a.client.HeadObject(asked, &s3.HeadObjectInput{Bucket: &a.bucket, Key: &name})
	if absent(err) {
		return nil, fmt.Errorf("s3: open %s: %w", name, archive.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("s3: open %s: %w", name, err)
	}
	return &object{a: a, ctx: ctx, name: name, etag: head.ETag, size: aws.ToInt64(head.ContentLength)}, nil
}

// List implements archive.Archive.
func (a *Archive) List(ctx context.Context, prefix string) (names []string, err error) {
	pages := s3.NewListObjectsV2Paginator(a.client, &s3.ListObjectsV2Input{Bucket: &a.bucket, Prefix: &prefix})
	for pages.HasMorePages() {
		asked, cancel := context.WithTimeout(ctx, a.timeout)
		page, err := pages.NextPage(asked)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("s3: list %s: %w", prefix, err)
		}
		for _, o := range page.Contents {
			names = append(names, aws.ToString(o.Key))
		}
	}
	slices.Sort(names) // servers other than Amazon's may have another order
	return names, nil
}

// object is an object that stays open for as long as the context of its Open.
type object struct {
	a    *Archive
	ctx  context.Context
	name string
	etag *string
	size int64
}

func (o *object) ReadAt(p []byte, off int64) (int, error) {
	if off >= o.size {
		return 0, io.EOF
	}
	want := min(int64(len(p)), o.size-off)
	if want == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(o.ctx, o.a.timeout)
	defer cancel()
	part, err := o.a.client.GetObject(ctx, &s3.GetObjectInput{
		Bucket: &o.a.bucket, Key: &o.name, IfMatch: o.etag, Range: aws.String(fmt.Sprintf("bytes=%d-%d", off, off+want-1)),
	})
	if err != nil {
		return 0, fmt.Errorf("s3: read %s: %w", o.name, err)
	}
	defer part.Body.Close()
	n, err := io.ReadFull(part.Body, p[:want])
	if err != nil {
		return n, fmt.Errorf("s3: read %s: %w", o.name, err)
	}
	if n < len(p) {
		err = io.EOF
	}
	return n, err
}

func (o *object) Size() int64 { return o.size }

// Close implements io.Closer; between reads an object holds nothing.
func (o *object) Close() error { return nil }
