package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// certify writes NAME.pem and NAME.key for each argument NAME or NAME=URI: the first is an authority, which signs the others.
func certify(ts *testscript.TestScript, _ bool, args []string) {
	var parent *x509.Certificate
	var signer *ecdsa.PrivateKey
	for n, arg := range args {
		name, uri, named := strings.Cut(arg, "=")
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		ts.Check(err)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(n + 1)), Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true,
			IPAddresses: []net.IP{net.ParseIP("127.0.0.1")}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		if named {
			u, err := url.Parse(uri)
			ts.Check(err)
			template.URIs = []*url.URL{u}
		}
		if n == 0 {
			parent, signer, template.IsCA, template.KeyUsage = template, key, true, x509.KeyUsageCertSign
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
		ts.Check(err)
		text, err := x509.MarshalECPrivateKey(key)
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
		ts.Check(os.WriteFile(ts.MkAbs(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), 0o600))
	}
}
