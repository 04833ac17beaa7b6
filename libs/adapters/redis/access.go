package redis

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/settings"
)

// Access says where Redis is.
type Access struct {
	Address  settings.Addresses `default:"127.0.0.1:6379" env:"ADDRESS" placeholder:"HOST:PORT,…" help:"The Redis server; of a cluster, nodes to begin with."`
	Cluster  bool               `env:"CLUSTER" help:"It is a Redis Cluster."`
	Prefix   string             `default:"minutehand:" env:"PREFIX" placeholder:"TEXT" help:"Prefix of all keys."`
	Username string             `env:"USERNAME" placeholder:"NAME" help:"User of Redis; empty for the default one."`
	// With releases from before beside it, an attempt that is delivered again could be called twice (decision 46).
	OutcomesTogether bool                `env:"OUTCOMES_TOGETHER" help:"Keep the first outcomes of a minute in one hash, which takes a fraction of the memory. To be set once every process runs a release that has this setting."`
	PasswordFile     settings.SecretFile `env:"PASSWORD_FILE" placeholder:"FILE" help:"File with the user's password."`
	certificates.Towards
}

// Options returns the options that it states.
func (a *Access) Options(logger *slog.Logger) (Options, error) {
	password, err := a.PasswordFile.Read()
	client, err2 := a.Client(logger)
	return Options{
		Address: a.Address.String(), Cluster: a.Cluster, Prefix: a.Prefix, Username: a.Username, Password: password, TLS: client,
		OutcomesTogether: a.OutcomesTogether,
	}, errors.Join(err, err2)
}

// HotTier is what services use of Redis.
type HotTier struct {
	*Tier
	Buckets *HotBuckets
	Records *Records
	Board   Board
	Pools   *Pools

	valve *Valve
}

// checkLimit bounds the check whether Redis may evict keys.
const checkLimit = 2 * time.Second

// Connect opens the hot tier with the given number of partitions. Redis need not answer for that; if it does, it must not evict
// keys (ErrEvicts).
func (a *Access) Connect(ctx context.Context, partitions int, logger *slog.Logger) (*HotTier, error) {
	o, err := a.Options(logger)
	if err != nil {
		return nil, err
	}
	o.Partitions = partitions
	return OpenHotTier(ctx, o, logger)
}

// OpenHotTier is Connect with options.
func OpenHotTier(ctx context.Context, o Options, logger *slog.Logger) (*HotTier, error) {
	t := Open(o)
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	if err := t.Check(ctx); errors.Is(err, ErrEvicts) {
		return nil, errors.Join(err, t.Close())
	}
	return &HotTier{Tier: t, Buckets: NewHotBuckets(t), Records: NewRecords(t), Board: NewBoard(t), Pools: NewPools(t), valve: NewValve(t, logger)}, nil
}

// Close closes the connections.
func (t *HotTier) Close() {
	t.valve.Close()
	_, _, _ = t.Buckets.Close(), t.Pools.Close(), t.Tier.Close()
}
