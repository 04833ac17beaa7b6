package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/settings"
)

// connectionsCmd are the commands about connections.
type connectionsCmd struct {
	List   connectionListCmd   `cmd:"" default:"withargs" help:"List connections, without their secrets."`
	Kafka  connectionKafkaCmd  `cmd:"" help:"Make or replace a connection to a cluster of Kafka."`
	SQS    connectionSQSCmd    `cmd:"" name:"sqs" help:"Make or replace a connection to an account of SQS."`
	Get    connectionGetCmd    `cmd:"" help:"Show a connection, without its secret."`
	Delete connectionDeleteCmd `cmd:"" help:"Delete a connection."`
}

// Help implements kong.HelpProvider.
func (connectionsCmd) Help() string {
	return `A job sends a message to a topic of Kafka or a queue of SQS over a connection of its tenant. The connection holds the addresses and the
secret, so that no job does.

  minutehand connections            the same as connections list`
}

type connectionListCmd struct{ client }

// Help implements kong.HelpProvider.
func (connectionListCmd) Help() string {
	return `In the order of their names.

  minutehand connections list`
}

// Run implements the command.
func (c *connectionListCmd) Run(ctx context.Context) error {
	var p pageAnswer
	if _, err := c.do(ctx, http.MethodGet, "/connections", nil, &p); err != nil {
		return err
	}
	return c.print(p, func(w io.Writer) { connectionTable(w, p.Items) })
}

func connectionTable(w io.Writer, items []map[string]any) {
	t := newTable(w, "NAME", "KIND", "LEADS TO", "CHANGED", "BY")
	for _, x := range items {
		t.row(x["name"], x["kind"], leadsTo(x), when(x["updated_at"]), x["updated_by"])
	}
	t.end()
}

// leadsTo says in a few words where a connection leads.
func leadsTo(x map[string]any) string {
	if k, ok := x["kafka"].(map[string]any); ok {
		brokers, _ := k["brokers"].([]any)
		return strings.Trim(fmt.Sprint(brokers), "[]")
	}
	q, _ := x["sqs"].(map[string]any)
	words := []string{shown(q["region"])}
	for _, member := range []string{"account", "endpoint"} {
		if q[member] != nil {
			words = append(words, shown(q[member]))
		}
	}
	return strings.Join(words, " ")
}

// connectionRef is a command about one connection.
type connectionRef struct {
	client
	Name string `arg:"" help:"Name of the connection: lower-case letters, digits and hyphens."`
}

func (c *connectionRef) path() string { return "/connections/" + url.PathEscape(c.Name) }

type connectionGetCmd struct{ connectionRef }

// Help implements kong.HelpProvider.
func (connectionGetCmd) Help() string {
	return `The whole of it with -o json.

  minutehand connections get orders`
}

// Run implements the command.
func (c *connectionGetCmd) Run(ctx context.Context) error {
	var x map[string]any
	if _, err := c.do(ctx, http.MethodGet, c.path(), nil, &x); err != nil {
		return err
	}
	return c.print(x, func(w io.Writer) { connectionTable(w, []map[string]any{x}) })
}

type connectionDeleteCmd struct{ connectionRef }

// Help implements kong.HelpProvider.
func (connectionDeleteCmd) Help() string {
	return `Executions of jobs that still use it fail, and are retried as their jobs say.

  minutehand connections delete orders`
}

// Run implements the command.
func (c *connectionDeleteCmd) Run(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, c.path(), nil, nil)
	return err
}

// asItIs stands for a secret that stays as it is.
const asItIs = "********"

// secretOf returns a secret from its file; asItIs if there is none.
func secretOf(f settings.SecretFile) (string, error) {
	if f == "" {
		return asItIs, nil
	}
	return f.Read()
}

// put makes or replaces a connection.
func (c *connectionRef) put(ctx context.Context, body any) error {
	var x map[string]any
	if _, err := c.do(ctx, http.MethodPut, c.path(), body, &x); err != nil {
		return err
	}
	return c.print(x, func(w io.Writer) { connectionTable(w, []map[string]any{x}) })
}

type connectionKafkaCmd struct {
	connectionRef
	Broker       []string            `required:"" help:"Broker to connect to first; repeat the flag, or separate several by commas." placeholder:"HOST:PORT"`
	TLS          bool                `name:"tls" help:"Encrypt."`
	CAFile       settings.SecretFile `name:"ca-file" help:"File with the authority that signed the certificates of the brokers; without it, those that the server's system trusts." placeholder:"FILE"`
	Username     string              `help:"User of SASL." placeholder:"NAME"`
	PasswordFile settings.SecretFile `help:"File with its password; without it, the password stays as it is." placeholder:"FILE"`
	Mechanism    string              `help:"PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, the default." placeholder:"NAME"`
}

// Help implements kong.HelpProvider.
func (connectionKafkaCmd) Help() string {
	return `Nothing is sent to the cluster for that. Its user needs to write to the topics, and to describe them.

  minutehand connections kafka orders --broker 127.0.0.1:9092
  minutehand jobs create --name runs --every 15m --kafka orders/runs --body '{"report":"sales"}'
  minutehand connections kafka orders --broker a.example.com:9096,b.example.com:9096 --tls`
}

// Run implements the command.
func (c *connectionKafkaCmd) Run(ctx context.Context) error {
	k := map[string]any{"brokers": c.Broker, "tls": c.TLS}
	set(k, "username", c.Username, "mechanism", c.Mechanism)
	if c.Username != "" {
		password, err := secretOf(c.PasswordFile)
		if err != nil {
			return err
		}
		k["password"] = password
	} else if c.PasswordFile != "" {
		return usageError{errors.New("--password-file needs --username")}
	}
	if c.CAFile != "" {
		ca, err := c.CAFile.Read()
		if err != nil {
			return err
		}
		k["ca_certificate"] = ca
	}
	return c.put(ctx, map[string]any{job.TargetKafka: k})
}

type connectionSQSCmd struct {
	connectionRef
	Region        string              `required:"" help:"Region of the queues." placeholder:"NAME"`
	AccessKeyID   string              `required:"" name:"access-key-id" help:"Access key." placeholder:"KEY"`
	SecretKeyFile settings.SecretFile `name:"secret-key-file" help:"File with its secret; without it, the secret stays as it is." placeholder:"FILE"`
	Account       string              `help:"Account that owns the queues, if it is not that of the key." placeholder:"NUMBER"`
	Endpoint      string              `help:"A server that is not Amazon's." placeholder:"URL"`
}

// Help implements kong.HelpProvider.
func (connectionSQSCmd) Help() string {
	return `Nothing is sent to the account for that. The key needs sqs:GetQueueUrl and sqs:SendMessage on its queues, and nothing else.

  echo the-secret > secret-key
  minutehand connections sqs billing --region eu-west-1 --access-key-id AKIAEXAMPLE --secret-key-file secret-key
  minutehand jobs create --name invoices --cron '0 6 * * *' --sqs billing/invoices.fifo --body '{"of":"yesterday"}'`
}

// Run implements the command.
func (c *connectionSQSCmd) Run(ctx context.Context) error {
	secret, err := secretOf(c.SecretKeyFile)
	if err != nil {
		return err
	}
	q := map[string]any{"region": c.Region, "access_key_id": c.AccessKeyID, "secret_access_key": secret}
	set(q, "account", c.Account, "endpoint", c.Endpoint)
	return c.put(ctx, map[string]any{job.TargetSQS: q})
}
