package admin_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/certificates/certificatestest"
)

func TestExpiryOfACertificateIsThatOfTheFileAsItIsNow(t *testing.T) {
	authority, err := certificatestest.New(t.TempDir(), "authority")
	if err != nil {
		t.Fatal(err)
	}
	files, err := authority.Issue("api", "")
	if err != nil {
		t.Fatal(err)
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(admin.Expiry(map[string]string{
		"tls-certificate": files.Certificate, "tls-client-ca": "", "redis-tls-ca": filepath.Join(t.TempDir(), "is not there"),
	}))
	read := func() map[string]time.Time {
		t.Helper()
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		told := map[string]time.Time{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				told[m.GetLabel()[0].GetValue()] = time.Unix(int64(m.GetGauge().GetValue()), 0)
			}
		}
		return told
	}
	first := read()
	if left := time.Until(first["tls-certificate"]); len(first) != 1 || left < 99*time.Hour || left > 101*time.Hour {
		t.Fatalf("told %v, want that the one certificate expires in 100 h", first)
	}
	if err := os.WriteFile(files.Certificate, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if told := read(); len(told) != 0 {
		t.Errorf("told %v of a file without a certificate", told)
	}
}
