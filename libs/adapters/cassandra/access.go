package cassandra

import (
	"context"
	"errors"
	"log/slog"

	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/settings"
)

// Access says where Cassandra is.
type Access struct {
	Hosts        settings.Addresses  `default:"127.0.0.1:9042" env:"HOSTS" placeholder:"HOST:PORT,…" help:"Nodes of Cassandra to begin with."`
	Keyspace     string              `default:"minutehand" env:"KEYSPACE" placeholder:"NAME" help:"Keyspace."`
	Datacenter   string              `env:"DATACENTER" placeholder:"NAME" help:"The local data centre; may be left out where there is only one."`
	Username     string              `env:"USERNAME" placeholder:"NAME" help:"User of Cassandra; empty for none."`
	PasswordFile settings.SecretFile `env:"PASSWORD_FILE" placeholder:"FILE" help:"File with the user's password."`
	certificates.Towards
}

// Options returns the options that it states.
func (a *Access) Options(logger *slog.Logger) (Options, error) {
	password, err := a.PasswordFile.Read()
	client, err2 := a.Client(logger)
	o := Options{Hosts: a.Hosts, Keyspace: a.Keyspace, Datacenter: a.Datacenter, Username: a.Username, Password: password}
	if client != nil {
		o.Dial = client.Dial
	}
	return o, errors.Join(err, err2)
}

// Connect opens the store, which must have the expected partition count. It waits until Cassandra answers. An error is a mistake in
// the settings, such as ErrDatacenter and jobstore.ErrPartitions, or ctx's.
func (a *Access) Connect(ctx context.Context, partitions int, logger *slog.Logger) (store *Store, err error) {
	o, err := a.Options(logger)
	if err != nil {
		return nil, err
	}
	var wrong error
	err = run.Retry(ctx, logger, "connect to Cassandra", func(ctx context.Context) (err error) {
		store, err = OpenChecked(ctx, o, partitions)
		if errors.Is(err, jobstore.ErrPartitions) || errors.Is(err, ErrDatacenter) {
			wrong, err = err, nil
		}
		return err
	})
	return store, errors.Join(wrong, err)
}

// OpenChecked opens a store that must have a single data centre, or the one that is named (ErrDatacenter), and the given partition
// count (jobstore.ErrPartitions).
func OpenChecked(ctx context.Context, o Options, partitions int) (*Store, error) {
	store, err := Open(o)
	if err != nil {
		return nil, err
	}
	if err = store.CheckDatacenter(ctx, o.Datacenter); err == nil {
		err = store.CheckPartitions(ctx, partitions)
	}
	if err != nil {
		store.Close()
		return nil, err
	}
	return store, nil
}
