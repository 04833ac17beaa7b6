package jobapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestEveryOperationAsksForTheRoleThatTheDocumentNames makes every operation in every role, of a tenant and of the installation. The
// answer is 403 where the role is too small, and never otherwise; a refusal changes nothing.
func TestEveryOperationAsksForTheRoleThatTheDocumentNames(t *testing.T) {
	w := newTwo(t, nil)
	roles, tried := []string{"viewer", "operator", "editor", "admin"}, 0
	d := loadDocument(t)
	operations := d.operations()
	for _, installation := range []bool{false, true} {
		for n, role := range roles {
			body, headers := `{"name":"x","role":"`+role+`"}`, as(w.keys["acme"])
			if installation {
				body, headers = `{"name":"x","role":"`+role+`","installation":true}`, as(adminToken)
			}
			m, _ := w.answer(http.StatusCreated, http.MethodPost, "/keys", body, headers...)
			credential := append(as(m["key"].(string)), "If-Match", "*")
			if installation {
				credential = append(credential, "Minutehand-Tenant", "acme")
			}
			for _, op := range operations {
				raw := d.at(op.pointer)
				needs, _ := raw["x-role"].(string)
				all, _ := raw["x-installation"].(bool)
				may := n >= slices.Index(roles, needs) && (installation || !all)
				w.renew("acme")
				template := strings.TrimPrefix(op.path, "/api/v1")
				text := ""
				if op.body != nil {
					if text = goodJob; strings.Contains(op.contentType, "merge-patch") {
						text = `{}`
					}
					if b, ok := bases()[template]; ok {
						text = b
					}
				}
				path := named(template, w.jobs["acme"])
				if op.id == "deleteTenant" {
					path = "/tenants/globex" // the one that this test does without
				}
				before := w.calls.n.Load()
				got := w.do(op.method, path, text, append(credential, "Content-Type", max(op.contentType, "application/json"))...)
				tried++
				if (got.Code == http.StatusForbidden) == may || got.Code == http.StatusUnauthorized || got.Code >= 500 {
					t.Errorf("%s as %s (installation: %v): %d %s", op.id, role, installation, got.Code, got.Body)
				}
				if !may && w.calls.n.Load()-before > 2 { // the key and the tenant
					t.Errorf("%s as %s: a refusal costs %d calls of the stores", op.id, role, w.calls.n.Load()-before)
				}
			}
		}
	}
	t.Logf("%d operations in %d roles: %d requests", len(operations), 2*len(roles), tried)
}
