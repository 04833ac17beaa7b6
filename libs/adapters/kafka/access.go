package kafka

import (
	"log/slog"

	"github.com/minutehand/minutehand/libs/settings"
)

// Access says where Kafka is.
type Access struct {
	Brokers settings.Addresses `default:"127.0.0.1:9092" env:"BROKERS" placeholder:"HOST:PORT,…" help:"Brokers of Kafka to begin with."`
	Prefix  string             `default:"minutehand." env:"PREFIX" placeholder:"TEXT" help:"Prefix of topics and groups."`
}

// Connect opens the log. Kafka need not answer for that.
func (a *Access) Connect(logger *slog.Logger) (*Log, error) {
	return Open(Options{Brokers: a.Brokers, Prefix: a.Prefix, Logger: logger})
}
