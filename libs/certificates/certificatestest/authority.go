// Package certificatestest issues certificates for tests, into files.
package certificatestest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/minutehand/minutehand/libs/certificates"
)

// life is how long before and after its making a certificate is valid.
const life = 100 * time.Hour

// Authority issues certificates into a folder.
type Authority struct {
	// File holds its own certificate.
	File   string
	folder string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	// Issued is the number of the last certificate.
	Issued int64
}

// New makes an authority and writes NAME.pem.
func New(folder, name string) (*Authority, error) {
	a := &Authority{File: filepath.Join(folder, name+".pem"), folder: folder}
	_, err := a.Issue(name, "")
	return a, err
}

// Issue writes NAME.pem and NAME.key: a certificate for 127.0.0.1 and these hosts, with a URI among its alternative names ("" for none).
func (a *Authority) Issue(name, uri string, hosts ...string) (certificates.Files, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certificates.Files{}, err
	}
	a.Issued++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.Issued), Subject: pkix.Name{CommonName: name}, DNSNames: hosts, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1")}, NotBefore: time.Now().Add(-life), NotAfter: time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if uri != "" {
		u, err := url.Parse(uri)
		if err != nil {
			return certificates.Files{}, err
		}
		template.URIs = []*url.URL{u}
	}
	if a.key == nil { // its own
		a.cert, a.key, template.IsCA, template.KeyUsage = template, key, true, x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return certificates.Files{}, err
	}
	if template.IsCA {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			return certificates.Files{}, err
		}
	}
	text, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return certificates.Files{}, err
	}
	f := certificates.Files{Certificate: filepath.Join(a.folder, name+".pem"), Key: filepath.Join(a.folder, name+".key"), Authority: a.File}
	return f, errors.Join(write(f.Key, "EC PRIVATE KEY", text), write(f.Certificate, "CERTIFICATE", der))
}

func write(name, kind string, der []byte) error {
	return os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
