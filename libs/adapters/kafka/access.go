package kafka

import (
	"errors"
	"log/slog"

	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/settings"
)

// Access says where Kafka is.
type Access struct {
	Brokers      settings.Addresses  `default:"127.0.0.1:9092" env:"BROKERS" placeholder:"HOST:PORT,…" help:"Brokers of Kafka to begin with."`
	Prefix       string              `default:"minutehand." env:"PREFIX" placeholder:"TEXT" help:"Prefix of topics and groups."`
	Username     string              `env:"USERNAME" placeholder:"NAME" help:"User of Kafka, by SCRAM-SHA-512; empty for none."`
	PasswordFile settings.SecretFile `env:"PASSWORD_FILE" placeholder:"FILE" help:"File with the user's password."`
	certificates.Towards
}

// Options returns the options that it states.
func (a *Access) Options(logger *slog.Logger) (Options, error) {
	password, err := a.PasswordFile.Read()
	client, err2 := a.Client(logger)
	o := Options{Brokers: a.Brokers, Prefix: a.Prefix, Username: a.Username, Password: password, Logger: logger}
	if client != nil {
		o.Dial = client.Dial
	}
	return o, errors.Join(err, err2)
}

// Connect opens the log. Kafka need not answer for that.
func (a *Access) Connect(logger *slog.Logger) (*Log, error) {
	o, err := a.Options(logger)
	if err != nil {
		return nil, err
	}
	return Open(o)
}
