package s3

import (
	"context"
	"log/slog"

	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/settings"
)

// Access says where the archive's bucket is.
type Access struct {
	Bucket        string              `default:"minutehand" env:"BUCKET" placeholder:"NAME" help:"Bucket of the archive."`
	Region        string              `default:"us-east-1" env:"REGION" placeholder:"NAME" help:"Its region."`
	Endpoint      string              `env:"ENDPOINT" placeholder:"URL" help:"A server that is not Amazon's."`
	AccessKey     string              `env:"ACCESS_KEY" placeholder:"KEY" help:"Access key; empty for the machine's own credentials."`
	SecretKeyFile settings.SecretFile `env:"SECRET_KEY_FILE" placeholder:"FILE" help:"File with the secret key."`
	// An endpoint of https speaks TLS, as Amazon's do.
	certificates.Named
}

// Options returns the options that it states.
func (a *Access) Options(logger *slog.Logger) (o Options, err error) {
	secret, err := a.SecretKeyFile.Read()
	o = Options{Bucket: a.Bucket, Region: a.Region, Endpoint: a.Endpoint, AccessKey: a.AccessKey, SecretKey: secret}
	if err == nil && a.Given() {
		o.TLS, err = a.Client(logger)
	}
	return o, err
}

// Connect returns the archive. S3 need not answer for that.
func (a *Access) Connect(ctx context.Context, logger *slog.Logger) (*Archive, error) {
	o, err := a.Options(logger)
	if err != nil {
		return nil, err
	}
	return NewArchive(ctx, o)
}
