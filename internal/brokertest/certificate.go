//go:build unix

package brokertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificate is a server's certificate for 127.0.0.1, but not for localhost, of an
// authority that nothing else trusts. Its fields are the paths of PEM files.
type Certificate struct{ Authority, Certificate, Key string }

// NewCertificate creates an authority, and a certificate of it.
func NewCertificate(tb testing.TB) Certificate {
	tb.Helper()
	folder := tb.TempDir()
	c := Certificate{filepath.Join(folder, "ca.pem"), filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "brokertest"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "broker"}, NotAfter: authority.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	top, own := newKey(tb), newKey(tb)
	sign := func(file string, of *x509.Certificate, key *ecdsa.PrivateKey) {
		text, err := x509.CreateCertificate(rand.Reader, of, authority, &key.PublicKey, top)
		writePEM(tb, file, "CERTIFICATE", text, err)
	}
	sign(c.Authority, authority, top)
	sign(c.Certificate, server, own)
	text, err := x509.MarshalPKCS8PrivateKey(own)
	writePEM(tb, c.Key, "PRIVATE KEY", text, err)
	return c
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func writePEM(tb testing.TB, file, kind string, text []byte, err error) {
	tb.Helper()
	if err == nil {
		err = os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: text}), 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// Server returns the TLS configuration of a server in the test itself.
func (c Certificate) Server(tb testing.TB) *tls.Config {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}
