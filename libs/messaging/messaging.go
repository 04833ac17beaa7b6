// Package messaging holds the connections of tenants to brokers of their own, and the port over which messages go there.
//
// It promises: a message that Send has accepted was acknowledged by the broker, on all replicas that it waits for. A message that Send did
// not accept may have been sent all the same, under the same ID. No error repeats a credential.
package messaging

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// Message is what is sent to a topic or a queue.
type Message struct {
	// Queue is the name of the topic or queue, Group what keeps messages in order: a record's key, or a message group.
	Queue, Group string
	// ID is the same for all messages that mean the same. A broker that recognises duplicates recognises them by it.
	ID string
	// Headers are the headers of a record, or the attributes of a message.
	Headers map[string]string
	Body    []byte
}

// Sender sends messages over one connection. It is safe for concurrent use.
type Sender interface {
	// Send sends a message and waits until the broker has it, or ctx ends. The receipt is JSON that says where the message is: see the
	// adapter. A [*Refusal] is what the broker answered; any other error is that of the connection, or of ctx.
	Send(ctx context.Context, m *Message) (receipt []byte, err error)
	// Close closes the connections. What is under way fails.
	Close()
}

// Open returns the sender of a connection. It does not wait for the broker.
type Open func(c *Connection) (Sender, error)

// Dial makes a connection to an address.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Refusal says why a broker did not take a message.
type Refusal struct {
	// Permanent: the same message would be refused again.
	Permanent bool
	// Reason is a sentence without its first capital and without a full stop. It repeats no credential, and of what a broker says only the
	// broker's own code for it.
	Reason string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Reason }

// MaxAttributes is how many headers a message on a queue of SQS may have besides those of Minutehand: SQS allows ten in all.
const MaxAttributes = 2

// MaxConnections bounds the connections of a tenant.
const MaxConnections = 100

// Errors of a [Set].
var (
	// ErrNotFound means that the tenant has no connection of that name.
	ErrNotFound = errors.New("no such connection")
	// ErrTooMany means that the tenant has more than [MaxConnections], or of more than [MaxSetBytes].
	ErrTooMany = errors.New("too many connections")
)

// Kafka says how a cluster is reached.
type Kafka struct {
	// Brokers are the addresses to begin with, HOST:PORT.
	Brokers []string `json:"brokers"`
	// TLS: connections are encrypted. CA is the authority that signed the brokers' certificates, as PEM; "" for those of the system.
	TLS bool   `json:"tls,omitempty"`
	CA  string `json:"ca_certificate,omitempty"`
	// Username and Password authenticate by SASL with a mechanism; no username, no SASL.
	Username  string `json:"username,omitempty"`
	Password  string `json:"password,omitempty"`
	Mechanism string `json:"mechanism,omitempty"`
}

// The SASL mechanisms.
const (
	MechanismPlain  = "PLAIN"
	MechanismSHA256 = "SCRAM-SHA-256"
	MechanismSHA512 = "SCRAM-SHA-512"
)

// SQS says how queues of an account are reached.
type SQS struct {
	Region string `json:"region"`
	// Endpoint is a URL in place of the one of AWS; "" for that.
	Endpoint  string `json:"endpoint,omitempty"`
	KeyID     string `json:"access_key_id"`
	SecretKey string `json:"secret_access_key"`
	// Account owns the queues if it is not the one of the key: 12 digits.
	Account string `json:"account,omitempty"`
}

// Connection is a connection of a tenant; one of Kafka and SQS is set.
type Connection struct {
	Name      string    `json:"-"`
	Kafka     *Kafka    `json:"kafka,omitempty"`
	SQS       *SQS      `json:"sqs,omitempty"`
	UpdatedAt time.Time `json:"updated_at"`
	UpdatedBy string    `json:"updated_by,omitempty"`
}

// Kind returns the kind of targets to which the connection leads.
func (c *Connection) Kind() string {
	if c.SQS != nil {
		return job.TargetSQS
	}
	return job.TargetKafka
}
