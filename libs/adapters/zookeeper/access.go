package zookeeper

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/settings"
)

// Access says where ZooKeeper is.
type Access struct {
	Servers settings.Addresses `default:"127.0.0.1:2181" env:"SERVERS" placeholder:"HOST:PORT,…" help:"Servers of ZooKeeper."`
	Root    string             `default:"/minutehand" env:"ROOT" placeholder:"NODE" help:"Node below which everything lies."`
	certificates.Towards
}

// Options returns the options that it states, without a partition count.
func (a *Access) Options(logger *slog.Logger) (Options, error) {
	client, err := a.Client(logger)
	return Options{Servers: a.Servers, Root: a.Root, TLS: client, Logger: logger}, err
}

// Connect opens the coordinator of that many partitions. ZooKeeper need not answer for that.
func (a *Access) Connect(partitions int, logger *slog.Logger, metrics prometheus.Registerer) (*Coordinator, error) {
	o, err := a.Options(logger)
	if err != nil {
		return nil, err
	}
	o.Partitions, o.Metrics = partitions, metrics
	return Open(o)
}
