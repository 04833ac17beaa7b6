package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// tenantsCmd are the commands about tenants.
type tenantsCmd struct {
	List   tenantListCmd   `cmd:"" default:"withargs" help:"List tenants."`
	Get    tenantGetCmd    `cmd:"" help:"Show a tenant, and how far its removal is."`
	Create tenantCreateCmd `cmd:"" help:"Make a tenant."`
	Delete tenantDeleteCmd `cmd:"" help:"Stop everything of a tenant, and remove its data."`
}

// Help implements kong.HelpProvider.
func (tenantsCmd) Help() string {
	return `Jobs, and everything that follows from them, belong to a tenant. There is always the tenant "default". An operator of the
installation acts for another one with --tenant NAME.

  minutehand tenants                the same as tenants list`
}

type tenantListCmd struct{ listed }

// Help implements kong.HelpProvider.
func (tenantListCmd) Help() string {
	return `With the numbers by which stores and the archive name them.

  minutehand tenants list`
}

// Run implements the command.
func (c *tenantListCmd) Run(ctx context.Context) error {
	return c.list(ctx, "/tenants", nil, func(w io.Writer, items []map[string]any) {
		t := newTable(w, "NAME", "NUMBER", "STATUS", "CREATED")
		for _, x := range items {
			t.row(x["name"], x["number"], x["status"], when(x["created_at"]))
		}
		t.end()
	})
}

type tenantGetCmd struct {
	client
	Name string `arg:"" help:"Name of the tenant."`
}

// Help implements kong.HelpProvider.
func (tenantGetCmd) Help() string {
	return `Of a tenant that is being deleted it shows the step: its jobs are stopped; for ten minutes what is on its way is recorded; jobs
with their histories, dead letters and keys are removed.

  minutehand tenants get default`
}

// Run implements the command.
func (c *tenantGetCmd) Run(ctx context.Context) error {
	var answer map[string]any
	if _, err := c.do(ctx, http.MethodGet, "/tenants/"+url.PathEscape(c.Name), nil, &answer); err != nil {
		return err
	}
	return c.print(answer, func(w io.Writer) { showTenant(w, answer) })
}

func showTenant(w io.Writer, answer map[string]any) {
	fmt.Fprintf(w, "tenant %s (%v) is %s\n", shown(answer["name"]), answer["number"], shown(answer["status"]))
	if m, ok := answer["removal"].(map[string]any); ok {
		fmt.Fprintf(w, "%s: %v jobs stopped, %v removed\n", shown(m["step"]), m["jobs_stopped"], m["jobs_removed"])
	}
}

type tenantDeleteCmd struct {
	client
	Name string `arg:"" help:"Name of the tenant."`
	Yes  bool   `help:"Do it: what is removed cannot be brought back."`
}

// Help implements kong.HelpProvider.
func (tenantDeleteCmd) Help() string {
	return `Nothing of the tenant is let in any more or fires, its jobs are cancelled, and its data is removed in steps; watch them with
tenants get. The archive keeps what it has, and the name is never given out again.

  minutehand tenants delete --help`
}

// Run implements the command.
func (c *tenantDeleteCmd) Run(ctx context.Context) error {
	if !c.Yes {
		return usageError{errors.New("this removes all jobs of the tenant for good; add --yes if that is meant")}
	}
	var answer map[string]any
	if _, err := c.do(ctx, http.MethodDelete, "/tenants/"+url.PathEscape(c.Name), nil, &answer); err != nil {
		return err
	}
	return c.print(answer, func(w io.Writer) { showTenant(w, answer) })
}

type tenantCreateCmd struct {
	client
	Name string `arg:"" help:"Name: lower-case letters, digits and hyphens."`
}

// Help implements kong.HelpProvider.
func (tenantCreateCmd) Help() string {
	return `A name is given out once. Make a key for the tenant next.

  minutehand tenants create acme
  minutehand keys create --name admin --role admin --tenant acme`
}

// Run implements the command.
func (c *tenantCreateCmd) Run(ctx context.Context) error {
	var answer map[string]any
	if _, err := c.do(ctx, http.MethodPost, "/tenants", map[string]string{"name": c.Name}, &answer); err != nil {
		return err
	}
	return c.print(answer, func(w io.Writer) {
		fmt.Fprintf(w, "tenant %s has number %v\n", shown(answer["name"]), answer["number"])
	})
}

// listed is what lists of tenants and keys have in common.
type listed struct {
	client
	Limit  int    `default:"50" help:"Items at most." placeholder:"N"`
	Cursor string `help:"Go on from here: the next_cursor of the page before." placeholder:"CURSOR"`
}

func (c *listed) list(ctx context.Context, path string, query url.Values, table func(w io.Writer, items []map[string]any)) error {
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", fmt.Sprint(c.Limit))
	if c.Cursor != "" {
		query.Set("cursor", c.Cursor)
	}
	var p pageAnswer
	if _, err := c.do(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &p); err != nil {
		return err
	}
	return c.print(p, func(w io.Writer) {
		table(w, p.Items)
		if p.NextCursor != nil {
			fmt.Fprintf(w, "\nthere may be more: --cursor %s\n", *p.NextCursor)
		}
	})
}

// keysCmd are the commands about API keys.
type keysCmd struct {
	List   keyListCmd   `cmd:"" default:"withargs" help:"List API keys, without the keys themselves."`
	Create keyCreateCmd `cmd:"" help:"Make an API key, and print it once."`
	Rotate keyRotateCmd `cmd:"" help:"Make a key that may do the same, and let the old one expire."`
	Revoke keyRevokeCmd `cmd:"" help:"End a key within five seconds."`
	Whoami whoamiCmd    `cmd:"" help:"Tell who the server takes this client for."`
}

// Help implements kong.HelpProvider.
func (keysCmd) Help() string {
	return `A client without an identity provider is known by an API key. It opens one tenant, in one role: a viewer reads, an operator
also stops and starts what is there, an editor also creates and changes jobs, an admin also makes keys. Clients send it as a bearer
token; this one reads it from --auth-token-file.

  minutehand keys                   the same as keys list`
}

type keyCreateCmd struct {
	client
	Name         string `required:"" help:"What the key is for." placeholder:"TEXT"`
	Role         string `required:"" enum:"viewer,operator,editor,admin" placeholder:"ROLE" help:"What it may do:"`
	Expires      string `help:"How long it lives; without it, until it is revoked." placeholder:"DURATION"`
	Installation bool   `help:"Let it open the whole installation instead of one tenant."`
}

// Help implements kong.HelpProvider.
func (keyCreateCmd) Help() string {
	return `The key goes to the standard output, and cannot be shown again.

  minutehand keys create --name deploy --role editor --expires 2160h
  minutehand keys create --name operators --role admin --installation`
}

// Run implements the command.
func (c *keyCreateCmd) Run(ctx context.Context) error {
	body := map[string]any{"name": c.Name, "role": c.Role}
	if c.Expires != "" {
		body["expires_in"] = c.Expires
	}
	if c.Installation {
		body["installation"] = true
	}
	return c.made(ctx, "/keys", body)
}

// made makes a key and prints it.
func (c *client) made(ctx context.Context, path string, body any) error {
	var answer map[string]any
	if _, err := c.do(ctx, http.MethodPost, path, body, &answer); err != nil {
		return err
	}
	return c.print(answer, func(w io.Writer) { fmt.Fprintln(w, answer["key"]) })
}

type keyListCmd struct {
	listed
	Installation bool `help:"Those of the installation instead of a tenant's."`
}

// Help implements kong.HelpProvider.
func (keyListCmd) Help() string {
	return `Keys that were revoked or have expired are listed too.

  minutehand keys list
  minutehand keys list --installation`
}

// Run implements the command.
func (c *keyListCmd) Run(ctx context.Context) error {
	query := url.Values{}
	if c.Installation {
		query.Set("installation", "true")
	}
	return c.list(ctx, "/keys", query, func(w io.Writer, items []map[string]any) {
		t := newTable(w, "KEY", "NAME", "ROLE", "STATUS", "EXPIRES", "LAST USED", "MADE BY")
		for _, x := range items {
			t.row(x["key_id"], x["name"], x["role"], x["status"], when(x["expires_at"]), when(x["last_used_at"]), x["created_by"])
		}
		t.end()
	})
}

type keyRotateCmd struct {
	client
	Key     string `arg:"" help:"Visible part of the key."`
	Overlap string `default:"1h" help:"How long the old key still opens." placeholder:"DURATION"`
}

// Help implements kong.HelpProvider.
func (keyRotateCmd) Help() string {
	return `The new key goes to the standard output.

  minutehand keys rotate mh_default_1 --overlap 24h`
}

// Run implements the command.
func (c *keyRotateCmd) Run(ctx context.Context) error {
	return c.made(ctx, "/keys/"+url.PathEscape(c.Key)+"/rotate", map[string]string{"overlap": c.Overlap})
}

type keyRevokeCmd struct {
	client
	Key string `arg:"" help:"Visible part of the key."`
}

// Help implements kong.HelpProvider.
func (keyRevokeCmd) Help() string {
	return `Doing it again changes nothing.

  minutehand keys revoke mh_default_1`
}

// Run implements the command.
func (c *keyRevokeCmd) Run(ctx context.Context) error {
	if _, err := c.do(ctx, http.MethodDelete, "/keys/"+url.PathEscape(c.Key), nil, nil); err != nil {
		return err
	}
	return c.print(map[string]any{"key_id": c.Key, "status": "revoked"}, func(w io.Writer) { fmt.Fprintln(w, c.Key, "is revoked") })
}

type whoamiCmd struct{ client }

// Help implements kong.HelpProvider.
func (whoamiCmd) Help() string {
	return `With the tenant for which requests are made, and the role.

  minutehand keys whoami`
}

// Run implements the command.
func (c *whoamiCmd) Run(ctx context.Context) error {
	var answer map[string]any
	if _, err := c.do(ctx, http.MethodGet, "/whoami", nil, &answer); err != nil {
		return err
	}
	return c.print(answer, func(w io.Writer) {
		of := "tenant " + shown(answer["tenant"])
		if answer["installation"] == true {
			of = "the installation, acting for " + of
		}
		fmt.Fprintf(w, "%s, %v of %s\n", shown(answer["subject"]), answer["role"], of)
	})
}
