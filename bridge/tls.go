package bridge

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// tls returns the TLS configuration, nil for an unencrypted connection. remedy tells the user how to get an encrypted one, if ca= is
// given without it. Without ca= the system's authorities are trusted. The clients set the server's name.
func (p *params) tls(encrypted bool, remedy string) *tls.Config {
	file := p.text("ca", "")
	switch {
	case !encrypted && file != "":
		p.note("ca= is for a connection with TLS: %s", remedy)
		fallthrough
	case !encrypted:
		return nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if file == "" {
		return config
	}
	config.RootCAs = x509.NewCertPool()
	if text, err := os.ReadFile(file); err != nil {
		p.note("ca=: %v", err)
	} else if !config.RootCAs.AppendCertsFromPEM(text) {
		p.note("ca=%s: it has no certificate in PEM", file)
	}
	return config
}

// withTLS has the schemes whose servers close a connection without TLS on a port with TLS, and the schemes with TLS.
var withTLS = map[string]string{"redis": "rediss://", "amqp": "amqps://", "mqtt": "mqtts://"}

// openError adds a remedy to an error of Open.
func (p *params) openError(err error) error {
	remedy := withTLS[p.url.Scheme]
	if remedy != "" && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)) {
		return fmt.Errorf("%w: the server closed the connection: if it requires TLS, write %s", err, remedy)
	}
	return tlsError(err)
}

// tlsError adds a remedy to an error of a TLS handshake.
func tlsError(err error) error {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var other tls.RecordHeaderError
	switch {
	case errors.As(err, &authority):
		return fmt.Errorf("%w: name the file with the certificate of the authority that signed it: ca=/path.pem", err)
	case errors.As(err, &name):
		return fmt.Errorf("%w: write the host name that is in its certificate", err)
	case errors.As(err, &other):
		return fmt.Errorf("%w: the server has no TLS on this port", err)
	}
	return err
}
