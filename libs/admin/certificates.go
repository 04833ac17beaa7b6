package admin

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxCertificateFile bounds what is read of a file with certificates.
const maxCertificateFile = 1 << 20

// expiry reads files of certificates at each scrape, so it also tells of one that was replaced.
type expiry map[string]string

// Expiry reports when certificates expire: for each setting the certificate that its file begins with, or, of a file of authorities
// (the setting's name ends in -ca), the one that lasts longest, because old ones stay while they are replaced. A file that cannot be read
// is omitted; whether certificates work is for those who use them.
func Expiry(fileBySetting map[string]string) prometheus.Collector { return expiry(fileBySetting) }

func expiryDesc() *prometheus.Desc {
	return prometheus.NewDesc("minutehand_certificate_expires_timestamp_seconds",
		"When the certificate of a setting expires, or the last one of its authorities, in seconds since 1970.", []string{"setting"}, nil)
}

// Describe implements prometheus.Collector.
func (expiry) Describe(ch chan<- *prometheus.Desc) { ch <- expiryDesc() }

// Collect implements prometheus.Collector.
func (e expiry) Collect(ch chan<- prometheus.Metric) {
	for setting, file := range e {
		if file == "" {
			continue
		}
		if at, ok := expires(file, strings.HasSuffix(setting, "-ca")); ok {
			ch <- prometheus.MustNewConstMetric(expiryDesc(), prometheus.GaugeValue, float64(at.Unix()), setting)
		}
	}
}

// expires returns when the first certificate in a file expires, or the last one to expire.
func expires(file string, last bool) (at time.Time, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil || len(text) > maxCertificateFile {
		return at, false
	}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return at, ok
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		if !ok || c.NotAfter.After(at) {
			at, ok = c.NotAfter, true
		}
		if !last {
			return at, ok
		}
	}
}

// Build reports, as the labels of a series that is always 1, which version runs and which time zone database it has.
func Build(version, timeZones string) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "minutehand_build_info", Help: "Always 1; the labels say which version runs and which time zones it knows.",
		ConstLabels: prometheus.Labels{"version": version, "tzdata": timeZones},
	})
	g.Set(1)
	return g
}
