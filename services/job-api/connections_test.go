package jobapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/minutehand/minutehand/libs/messaging"
)

const (
	kafkaConnection = `{"kafka":{"brokers":["kafka.example.com:9092"],"tls":true,"username":"jobs","password":"hunter2"}}`
	sqsConnection   = `{"sqs":{"region":"eu-west-1","access_key_id":"AKIA","secret_access_key":"hunter2"}}`
	kafkaJob        = `{"name":"n","type":"one_shot","delay":"1h","target":{"kind":"kafka","connection":"orders","topic":"runs","key":"k","headers":{"a":"b"},"body":{"a":1}}}`
	sqsJob          = `{"name":"n","type":"one_shot","delay":"1h","target":{"kind":"sqs","connection":"billing","queue":"runs.fifo","group":"g","headers":{"a":"b"},"body":{"a":1}}}`
)

// connected returns a server with a connection of each kind.
func connected(t *testing.T) *server {
	t.Helper()
	s := newServer(t, nil)
	_, h := s.answer(http.StatusCreated, http.MethodPut, "/connections/orders", kafkaConnection)
	if h.Get("Location") != "/api/v1/connections/orders" {
		t.Errorf("%v", h)
	}
	s.answer(http.StatusCreated, http.MethodPut, "/connections/billing", sqsConnection)
	return s
}

// secretOf returns the secret that is stored for a connection.
func (s *server) secretOf(name string) string {
	s.t.Helper()
	_, set, err := messaging.Read(s.t.Context(), s.stored, 0)
	must(s.t, err)
	c, err := set.Get(name)
	must(s.t, err)
	if c.Kafka != nil {
		return c.Kafka.Password
	}
	return c.SQS.SecretKey
}

func TestSecretOfAConnectionIsNeverShown(t *testing.T) {
	s := connected(t)
	for _, path := range []string{"/connections", "/connections/orders", "/connections/billing", "/changes"} {
		if w := s.do(http.MethodGet, path, ""); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "hunter2") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	m, _ := s.answer(http.StatusOK, http.MethodGet, "/connections/orders", "")
	k := m["kafka"].(map[string]any)
	if m["name"] != "orders" || m["kind"] != "kafka" || k["password"] != "********" || k["mechanism"] != "SCRAM-SHA-512" || m["updated_by"] == "" {
		t.Errorf("%v", m)
	}
}

// Who may change where a connection leads must not be sent its secret.
func TestSecretStaysWithTheAddressesThatItWasGivenFor(t *testing.T) {
	s := connected(t)
	masked := strings.Replace(kafkaConnection, "hunter2", "********", 1)
	s.answer(http.StatusOK, http.MethodPut, "/connections/orders", masked)
	if got := s.secretOf("orders"); got != "hunter2" {
		t.Errorf("the secret is %q", got)
	}
	account := strings.Replace(strings.Replace(sqsConnection, "hunter2", "********", 1), `"region"`, `"account":"123456789012","region"`, 1)
	s.answer(http.StatusOK, http.MethodPut, "/connections/billing", account)
	if got := s.secretOf("billing"); got != "hunter2" {
		t.Errorf("the secret is %q", got)
	}
	for path, body := range map[string]string{
		"/connections/orders":  strings.Replace(masked, "kafka.example.com", "evil.example.com", 1),
		"/connections/billing": strings.Replace(account, `"region"`, `"endpoint":"https://evil.example.com/","region"`, 1),
		"/connections/new":     masked,
	} {
		pointer := "/kafka/password"
		if strings.Contains(body, "sqs") {
			pointer = "/sqs/secret_access_key"
		}
		s.fault(http.StatusUnprocessableEntity, pointer, "masked", http.MethodPut, path, body)
	}
	s.fault(http.StatusUnprocessableEntity, "/kafka/password", "masked", http.MethodPut, "/connections/orders", strings.Replace(masked, `"tls":true,`, "", 1))
}

func TestFaultsOfAConnectionPointAtTheMember(t *testing.T) {
	s := connected(t)
	for _, c := range []struct{ pointer, code, body string }{
		{"", "required", `{}`},
		{"", "required", kafkaConnection[:len(kafkaConnection)-1] + "," + sqsConnection[1:]},
		{"/kafka/brokers", "required", `{"kafka":{"brokers":[]}}`},
		{"/kafka/brokers/1", "address", `{"kafka":{"brokers":["a:1","b:99999"]}}`},
		{"/kafka/brokers/0", "pattern", `{"kafka":{"brokers":["user@a:1"]}}`},
		{"/kafka/ca_certificate", "conflict", `{"kafka":{"brokers":["a:1"],"ca_certificate":"x"}}`},
		{"/kafka/ca_certificate", "certificate", `{"kafka":{"brokers":["a:1"],"tls":true,"ca_certificate":"x"}}`},
		{"/kafka/password", "required", `{"kafka":{"brokers":["a:1"],"username":"u"}}`},
		{"/kafka/mechanism", "conflict", `{"kafka":{"brokers":["a:1"],"mechanism":"SCRAM-SHA-256"}}`},
		{"/kafka/mechanism", "conflict", `{"kafka":{"brokers":["a:1"],"username":"u","password":"p","mechanism":"PLAIN"}}`},
		{"/sqs/endpoint", "url", strings.Replace(sqsConnection, `"region"`, `"endpoint":"https://u:p@h/","region"`, 1)},
		{"/sqs/access_key_id", "required", `{"sqs":{"region":"x","secret_access_key":"y"}}`},
	} {
		s.fault(http.StatusUnprocessableEntity, c.pointer, c.code, http.MethodPut, "/connections/new", c.body)
	}
	s.fault(http.StatusConflict, "/sqs", "conflict", http.MethodPut, "/connections/orders", sqsConnection)
	s.answer(http.StatusNotFound, http.MethodGet, "/connections/new", "")
}

func TestJobThatSendsMessagesIsShownAsItWasWritten(t *testing.T) {
	s := connected(t)
	for _, body := range []string{kafkaJob, sqsJob} {
		m, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs/"+s.create(body), "")
		target := m["target"].(map[string]any)
		for _, member := range strings.Fields(map[string]string{"kafka": "connection topic key", "sqs": "connection queue group"}[target["kind"].(string)]) {
			if !strings.Contains(body, `"`+member+`":"`+target[member].(string)+`"`) {
				t.Errorf("%s is %v", member, target[member])
			}
		}
		if target["method"] != nil || target["url"] != nil || target["timeout"] != "30s" {
			t.Errorf("%v", target)
		}
	}
}

func TestTargetsOfOneKindHaveNoMembersOfAnother(t *testing.T) {
	s := connected(t)
	swap := func(body, old, replacement string) string { return strings.Replace(body, old, replacement, 1) }
	for _, c := range []struct{ pointer, code, body string }{
		{"/target/url", "conflict", swap(kafkaJob, `"topic"`, `"url":"http://x/","topic"`)},
		{"/target/method", "conflict", swap(kafkaJob, `"topic"`, `"method":"POST","topic"`)},
		{"/target/queue", "conflict", swap(kafkaJob, `"topic"`, `"queue":"q","topic"`)},
		{"/target/group", "conflict", swap(kafkaJob, `"topic"`, `"group":"q","topic"`)},
		{"/target/topic", "conflict", swap(sqsJob, `"queue"`, `"topic":"q","queue"`)},
		{"/target/key", "conflict", swap(sqsJob, `"queue"`, `"key":"q","queue"`)},
		{"/target/connection", "conflict", swap(goodJob, `"url"`, `"connection":"orders","url"`)},
		{"/target/topic", "required", swap(kafkaJob, `"topic":"runs",`, "")},
		{"/target/topic", "reserved", swap(kafkaJob, `"runs"`, `".."`)},
		{"/target/connection", "required", swap(kafkaJob, `"connection":"orders",`, "")},
		{"/target/queue", "required", swap(sqsJob, `"queue":"runs.fifo",`, "")},
		{"/target/group", "conflict", swap(sqsJob, "runs.fifo", "runs")},
		{"/target/body", "required", swap(sqsJob, `,"body":{"a":1}`, "")},
		{"/target/headers", "too-many", swap(sqsJob, `{"a":"b"}`, `{"a":"b","c":"d","e":"f"}`)},
		{"/target/headers", "attribute-name", swap(sqsJob, `{"a":"b"}`, `{"a!":"b"}`)},
		{"/target/headers", "attribute-name", swap(sqsJob, `{"a":"b"}`, `{"AWS.a":"b"}`)},
		{"/target/headers", "required", swap(sqsJob, `{"a":"b"}`, `{"a":""}`)},
		{"/target/headers", "reserved-header", swap(kafkaJob, `{"a":"b"}`, `{"Minutehand-Attempt":"9"}`)},
		{"/target/connection", "unknown", swap(kafkaJob, "orders", "nobody")},
		{"/target/connection", "another-kind", swap(kafkaJob, "orders", "billing")},
	} {
		s.fault(http.StatusUnprocessableEntity, c.pointer, c.code, http.MethodPost, "/jobs", c.body)
	}
	if n := s.entries(); n != 0 {
		t.Errorf("refused creates left %d entries", n)
	}
	m, _ := s.answer(http.StatusOK, http.MethodPost, "/jobs:batch", `{"jobs":[`+kafkaJob+`,`+swap(kafkaJob, "orders", "nobody")+`,`+sqsJob+`]}`)
	var statuses []float64
	for _, r := range m["results"].([]any) {
		statuses = append(statuses, r.(map[string]any)["status"].(float64))
	}
	if len(statuses) != 3 || statuses[0] != http.StatusCreated || statuses[1] != http.StatusUnprocessableEntity || statuses[2] != http.StatusCreated {
		t.Errorf("%v", statuses)
	}
}

// A connection may be deleted while jobs use it; what else is changed in these does not depend on it.
func TestJobWhoseConnectionIsGoneCanBeChanged(t *testing.T) {
	s := connected(t)
	path := "/jobs/" + s.create(kafkaJob)
	s.answer(http.StatusNoContent, http.MethodDelete, "/connections/orders", "")
	s.answer(http.StatusNoContent, http.MethodDelete, "/connections/orders", "")
	s.answer(http.StatusOK, http.MethodPatch, path, `{"target":{"topic":"other"}}`, "If-Match", "*")
	s.fault(http.StatusUnprocessableEntity, "/target/connection", "unknown", http.MethodPatch, path, `{"target":{"connection":"another"}}`, "If-Match", "*")
	s.answer(http.StatusOK, http.MethodPatch, path, `{"target":{"kind":"http_webhook","url":"http://x/","connection":null,"topic":null,"key":null}}`, "If-Match", "*")
}

func TestConnectionsOfTwoTenantsHaveNothingToDoWithEachOther(t *testing.T) {
	w := newTwo(t, nil)
	w.answer(http.StatusCreated, http.MethodPut, "/connections/only-acme", sqsConnection, as(w.keys["globex"])...)
	w.answer(http.StatusNoContent, http.MethodDelete, "/connections/only-acme", "", as(w.keys["globex"])...)
	m, _ := w.answer(http.StatusOK, http.MethodGet, "/connections/only-acme", "", as(w.keys["acme"])...)
	if m["kind"] != "kafka" {
		t.Errorf("%v", m)
	}
	job := strings.Replace(kafkaJob, "orders", "only-acme", 1)
	w.answer(http.StatusCreated, http.MethodPost, "/jobs", job, as(w.keys["acme"])...)
	w.answer(http.StatusUnprocessableEntity, http.MethodPost, "/jobs", job, as(w.keys["globex"])...)
}
