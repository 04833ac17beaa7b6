package accounts

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/messaging"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// hidden replaces secrets in answers.
const hidden = "********"

// connection is a connection as answers show it.
type connection struct {
	Name      string           `json:"name"`
	Kind      string           `json:"kind"`
	Kafka     *messaging.Kafka `json:"kafka,omitempty"`
	SQS       *messaging.SQS   `json:"sqs,omitempty"`
	UpdatedAt time.Time        `json:"updated_at"`
	UpdatedBy string           `json:"updated_by"`
}

func showConnection(c *messaging.Connection) connection {
	shown := connection{Name: c.Name, Kind: c.Kind(), UpdatedAt: c.UpdatedAt, UpdatedBy: c.UpdatedBy}
	if c.Kafka != nil {
		k := *c.Kafka
		if shown.Kafka = &k; k.Password != "" {
			k.Password = hidden
		}
	}
	if c.SQS != nil {
		q := *c.SQS
		q.SecretKey = hidden
		shown.SQS = &q
	}
	return shown
}

// listConnections shows all connections of the tenant.
func (as *Accounts) listConnections(ctx context.Context, r *edge.Request) (edge.Response, error) {
	_, set, err := messaging.Read(ctx, as.Settings, r.Tenant())
	if err != nil {
		return edge.Response{}, err
	}
	items := []connection{}
	for _, name := range set.Names() {
		if c, err := set.Get(name); err == nil { // otherwise it is of a later release, which can show it
			items = append(items, showConnection(c))
		}
	}
	return edge.Response{Status: http.StatusOK, Body: map[string]any{"items": items}}, nil
}

// getConnection shows a connection.
func (as *Accounts) getConnection(ctx context.Context, r *edge.Request) (edge.Response, error) {
	_, set, err := messaging.Read(ctx, as.Settings, r.Tenant())
	if err != nil {
		return edge.Response{}, err
	}
	c, err := set.Get(r.PathValue("connection"))
	if err != nil {
		return edge.Response{}, jobstore.ErrNotFound // or of a later release, which can show it
	}
	return edge.Response{Status: http.StatusOK, Body: showConnection(c)}, nil
}

// putConnection makes or replaces a connection.
func (as *Accounts) putConnection(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var body messaging.Connection
	if err := json.Unmarshal(r.Raw, &body); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	body.Name = r.PathValue("connection")
	given, status := body, http.StatusOK
	err := as.changeConnections(ctx, r, func(set *messaging.Set) error {
		c, standing := given, (*messaging.Connection)(nil)
		status = http.StatusOK
		if _, there := set.Connections[c.Name]; there {
			var err error
			if standing, err = set.Get(c.Name); err != nil {
				return anotherKind("a later release", "")
			}
		} else {
			status = http.StatusCreated
		}
		if err := check(&c, standing); err != nil {
			return err
		}
		if standing != nil && reflect.DeepEqual([2]any{c.Kafka, c.SQS}, [2]any{standing.Kafka, standing.SQS}) {
			body = *standing
			return errAsItWas
		}
		c.UpdatedAt, c.UpdatedBy = job.Instant(as.Clock.Now()), r.By.Subject
		body = c
		if err := set.Put(&c); errors.Is(err, messaging.ErrTooMany) {
			return problem.New(http.StatusConflict, "too-many-connections", "The tenant has 100 connections already, or of 512 KiB in all; delete one that is no longer used.")
		} else if err != nil {
			return err
		}
		return nil
	})
	if err != nil && !errors.Is(err, errAsItWas) {
		return edge.Response{}, err
	}
	resp := edge.Response{Status: status, Body: showConnection(&body)}
	if status == http.StatusCreated {
		resp.Headers = map[string]string{"Location": edge.Root + "/connections/" + body.Name}
	}
	return resp, nil
}

// errAsItWas means that there is nothing to change.
var errAsItWas = errors.New("nothing to change")

// deleteConnection removes a connection.
func (as *Accounts) deleteConnection(ctx context.Context, r *edge.Request) (edge.Response, error) {
	name := r.PathValue("connection")
	err := as.changeConnections(ctx, r, func(set *messaging.Set) error {
		if _, there := set.Connections[name]; !there {
			return errAsItWas
		}
		delete(set.Connections, name)
		return nil
	})
	if err != nil && !errors.Is(err, errAsItWas) {
		return edge.Response{}, err
	}
	return edge.Response{Status: http.StatusNoContent}, nil
}

// changeConnections changes the connections of the tenant, makes that known, and starts over if another change came first.
func (as *Accounts) changeConnections(ctx context.Context, r *edge.Request, change func(set *messaging.Set) error) error {
	of := r.Tenant()
	setting := messaging.SettingOf(of)
	for {
		old, set, err := messaging.Read(ctx, as.Settings, of)
		if err != nil {
			return err
		}
		if err := change(&set); err != nil {
			return err
		}
		c := job.Change{Operation: r.Operation, Setting: setting, Object: r.PathValue("connection")}
		err = as.Recorder.Setting(ctx, job.SettingsOf(of), of, c, r.Author(), &set.Changes, func() error {
			value, err := json.Marshal(set)
			if err != nil {
				return err
			}
			return as.Settings.SwapSetting(ctx, setting, old, value)
		})
		if errors.Is(err, jobstore.ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("swap setting %s: %w", setting, err)
		}
		return nil
	}
}

// check checks what the document cannot say, resolves defaults, and puts secrets back that were shown masked.
func check(c, standing *messaging.Connection) error {
	var faults []problem.Fault
	add := func(ok bool, pointer, code, message string) {
		if !ok {
			faults = append(faults, problem.Fault{Pointer: pointer, Code: code, Message: message})
		}
	}
	if (c.Kafka == nil) == (c.SQS == nil) {
		return edge.Invalid([]problem.Fault{{Pointer: "", Code: "required", Message: "Give either kafka or sqs."}})
	}
	if standing != nil && standing.Kind() != c.Kind() {
		return anotherKind(standing.Kind(), "/"+c.Kind())
	}
	if c.Kafka != nil {
		k := *c.Kafka
		c.Kafka = &k
		var former *messaging.Kafka
		if standing != nil {
			former = standing.Kafka
		}
		checkKafka(&k, former, add)
	} else {
		q := *c.SQS
		c.SQS = &q
		var former *messaging.SQS
		if standing != nil {
			former = standing.SQS
		}
		checkSQS(&q, former, add)
	}
	if len(faults) > 0 {
		return edge.Invalid(faults)
	}
	return nil
}

func anotherKind(is, at string) error {
	return problem.New(http.StatusConflict, "another-kind", "The connection is one of "+is+", and so are the jobs that use it; choose another name.",
		problem.Fault{Pointer: at, Code: "conflict", Message: "Choose another name."})
}

const (
	notMasked = "This is what answers show in place of a secret, and none stands here for these addresses and this user; send the secret itself."
	leadsOn   = "Must be an absolute http or https URL without user name, password, query or fragment."
)

func checkKafka(k, former *messaging.Kafka, add func(ok bool, pointer, code, message string)) {
	add(len(k.Brokers) > 0, "/kafka/brokers", "required", "Name at least one broker.")
	for i, b := range k.Brokers {
		_, port, err := net.SplitHostPort(b)
		n, err2 := strconv.ParseUint(port, 10, 16)
		add(err == nil && err2 == nil && n > 0, "/kafka/brokers/"+strconv.Itoa(i), "address", "Must be HOST:PORT, with a port from 1 to 65535.")
	}
	add(k.CA == "" || k.TLS, "/kafka/ca_certificate", "conflict", "ca_certificate belongs to tls.")
	add(k.CA == "" || x509.NewCertPool().AppendCertsFromPEM([]byte(k.CA)), "/kafka/ca_certificate", "certificate", "Must be a certificate in PEM.")
	add((k.Username == "") == (k.Password == ""), "/kafka/password", "required", "Give both username and password, or neither.")
	add(k.Mechanism == "" || k.Username != "", "/kafka/mechanism", "conflict", "mechanism belongs to a username.")
	add(k.Mechanism != messaging.MechanismPlain || k.TLS, "/kafka/mechanism", "conflict", "PLAIN sends the password as it is; set tls, or choose another mechanism.")
	if k.Mechanism == "" && k.Username != "" {
		k.Mechanism = messaging.MechanismSHA512
	}
	if k.Password == hidden {
		// Otherwise an admin could send the password, which no answer shows, to an address of their own.
		same := former != nil && former.Username == k.Username && former.TLS == k.TLS && former.CA == k.CA && former.Mechanism == k.Mechanism &&
			slices.Equal(former.Brokers, k.Brokers)
		if add(same, "/kafka/password", "masked", notMasked); same {
			k.Password = former.Password
		}
	}
}

func checkSQS(q, former *messaging.SQS, add func(ok bool, pointer, code, message string)) {
	if q.Endpoint != "" {
		u, err := url.Parse(q.Endpoint)
		add(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil && u.Fragment == "" && u.RawQuery == "",
			"/sqs/endpoint", "url", leadsOn)
	}
	if q.SecretKey == hidden {
		same := former != nil && former.KeyID == q.KeyID && former.Endpoint == q.Endpoint && former.Region == q.Region
		if add(same, "/sqs/secret_access_key", "masked", notMasked); same {
			q.SecretKey = former.SecretKey
		}
	}
}
