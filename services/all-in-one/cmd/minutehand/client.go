package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/problem"
)

// maxAnswer bounds an answer of the API.
const maxAnswer = 64 << 20

// client is what every command that talks to an API has in common.
type client struct {
	Server    string `default:"http://127.0.0.1:8080" env:"MINUTEHAND_SERVER" help:"Where the API is." placeholder:"URL"`
	TokenFile string `name:"auth-token-file" env:"MINUTEHAND_AUTH_TOKEN_FILE" help:"File with the API key or the token to send." placeholder:"FILE"`
	CA        string `name:"server-ca" env:"MINUTEHAND_SERVER_CA" help:"Authorities that an https server's certificate must lead to, in PEM; without it those of the system." placeholder:"FILE"`
	Own       string `name:"client-certificate" env:"MINUTEHAND_CLIENT_CERTIFICATE" help:"Certificate to show to an https server, in PEM." placeholder:"FILE"`
	OwnKey    string `name:"client-key" env:"MINUTEHAND_CLIENT_KEY" help:"Private key of the certificate." placeholder:"FILE"`
	Tenant    string `env:"MINUTEHAND_TENANT" help:"Act for this tenant; only a credential of the installation may choose." placeholder:"NAME"`
	output
}

// output is what every command has in common that prints an answer.
type output struct {
	Output string `short:"o" default:"table" enum:"table,wide,json,yaml" placeholder:"FORM" help:"A table for people, a wide one with more columns, JSON or YAML for scripts."`
}

// do makes a request and decodes the answer into answer (nil for none). A problem document becomes an error that says
// everything that is wrong.
func (c *client) do(ctx context.Context, method, path string, body, answer any, headers ...string) (http.Header, error) {
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.Server, "/")+"/api/v1"+path, reader)
	if err != nil {
		return nil, usageError{errors.New("--server is not a URL")}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 { // Content-Type may be among them
		req.Header.Set(headers[i], headers[i+1])
	}
	if err := c.authorize(req); err != nil {
		return nil, err
	}
	caller, err := c.caller()
	if err != nil {
		return nil, usageError{err}
	}
	defer waiting(c.Server)()
	resp, err := caller.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no answer from %s: %w; is `minutehand run` running there?", c.Server, cause(err))
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return nil, refusal{complain(text, resp.Status), resp.StatusCode}
	}
	if answer == nil || len(text) == 0 {
		return resp.Header, nil
	}
	return resp.Header, json.Unmarshal(text, answer)
}

// authorize adds the credential and the tenant to a request.
func (c *client) authorize(req *http.Request) error {
	if c.TokenFile != "" {
		token, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return usageError{fmt.Errorf("cannot read the token file: %w", cause(err))}
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	if c.Tenant != "" {
		req.Header.Set("Minutehand-Tenant", c.Tenant)
	}
	return nil
}

// caller returns what makes requests, with the files that are named.
func (c *client) caller() (*http.Client, error) {
	if c.CA == "" && c.Own == "" && c.OwnKey == "" {
		return http.DefaultClient, nil
	}
	tls, err := certificates.NewClient(certificates.Files{Certificate: c.Own, Key: c.OwnKey, Authority: c.CA}, "", slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: tls.Config(), DisableKeepAlives: true}}, nil
}

// refusal is an answer that is not a success.
type refusal struct {
	error
	code int
}

func (r refusal) Unwrap() error { return r.error }

func complain(text []byte, status string) error {
	var p problem.Problem
	if json.Unmarshal(text, &p) != nil || p.Detail == "" {
		return errors.New("the server answered " + status)
	}
	var b strings.Builder
	b.WriteString(p.Detail)
	for _, f := range p.Errors {
		fmt.Fprintf(&b, "\n  %s: %s", f.Pointer, f.Message)
	}
	return errors.New(b.String())
}

// wide reports whether a table is to have all its columns.
func (c *output) wide() bool { return c.Output == "wide" }

// print writes an answer as JSON or YAML, or lets a table be written.
func (c *output) print(answer any, table func(w io.Writer)) error {
	if c.Output == "json" {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(answer)
	}
	if c.Output == "yaml" {
		text, err := toYAML(answer)
		if err == nil {
			_, err = os.Stdout.Write(text)
		}
		return err
	}
	table(os.Stdout)
	return nil
}

// since shows a step of a timeline as the time after it was due. What happened before, when it was read ahead, was ready in time.
func since(timeline map[string]any, step string) string {
	due, _ := timeline["due"].(string)
	at, _ := timeline[step].(string)
	from, err1 := time.Parse(time.RFC3339Nano, due)
	to, err2 := time.Parse(time.RFC3339Nano, at)
	switch {
	case err1 != nil || err2 != nil:
		return "-"
	case !to.After(from):
		return "in time"
	}
	return fmt.Sprintf("+%d ms", to.Sub(from).Milliseconds())
}

// when shows an instant to a person: in the zone of this machine, which is named, and how far it is from now.
func when(v any) string {
	s, _ := v.(string)
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05 MST") + " (" + relative(time.Until(t)) + ")"
}

// relative says how far an instant is from now, in its largest unit.
func relative(d time.Duration) string {
	form := "in %d %s"
	if d < 0 {
		d, form = -d, "%d %s ago"
	}
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if d >= unit.length {
			return fmt.Sprintf(form, d/unit.length, unit.name)
		}
	}
	return "now"
}

// shown is a value as a table shows it: what would move the cursor, break a column or turn the direction of the text around is
// escaped. A name that was given before names refused such characters may have them, and a target's error too.
func shown(v any) string {
	var b strings.Builder
	for _, r := range fmt.Sprint(v) {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
