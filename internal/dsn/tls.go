package dsn

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// The values of ssl-mode. MySQL's manual defines them under --ssl-mode.
const (
	modeDisabled       = "DISABLED"
	modePreferred      = "PREFERRED"
	modeRequired       = "REQUIRED"
	modeVerifyCA       = "VERIFY_CA"
	modeVerifyIdentity = "VERIFY_IDENTITY"
)

// tlsSettings are the options of a defaults file about TLS.
type tlsSettings struct {
	mode, version, ca, cert, key option
	ssl, verify                  *bool // MariaDB's; nil if absent
}

// set sets the options that are not texts. handled is false if o is not one of them.
func (s *tlsSettings) set(o option) (handled bool, err error) {
	switch o.name {
	case "ssl-capath", "ssl-crl", "ssl-crlpath":
		return true, o.errorf("%s is not supported: put the CAs into one file and name it with ssl-ca", o.name)
	case "ssl", "enable-ssl":
		s.ssl, err = o.boolean(true)
	case "skip-ssl", "disable-ssl":
		s.ssl, err = o.boolean(false)
	case "ssl-verify-server-cert", "enable-ssl-verify-server-cert":
		s.verify, err = o.boolean(true)
	case "skip-ssl-verify-server-cert", "disable-ssl-verify-server-cert":
		s.verify, err = o.boolean(false)
	default:
		return false, nil
	}
	return true, err
}

// boolean returns alone if the option has no value or a value that means yes, and the
// opposite if the value means no.
func (o option) boolean(alone bool) (*bool, error) {
	switch value := strings.ToUpper(o.value); {
	case !o.hasValue || value == "1" || value == "ON" || value == "TRUE":
		return &alone, nil
	case value == "0" || value == "OFF" || value == "FALSE":
		opposite := !alone
		return &opposite, nil
	}
	return nil, o.errorf("%s is neither 1 nor 0", o.name)
}

// effectiveMode returns the ssl-mode that results from the options.
func (s *tlsSettings) effectiveMode(onSocket bool) (string, error) {
	switch mode := strings.ToUpper(s.mode.value); {
	case mode == modePreferred && onSocket:
		return modeDisabled, nil
	case mode == modeDisabled, mode == modePreferred, mode == modeRequired,
		mode == modeVerifyCA, mode == modeVerifyIdentity:
		return mode, nil
	case s.mode.hasValue:
		return "", s.mode.errorf("ssl-mode is none of DISABLED, PREFERRED, REQUIRED, VERIFY_CA and VERIFY_IDENTITY")
	case s.ssl != nil && !*s.ssl:
		return modeDisabled, nil
	case s.verify != nil && *s.verify:
		return modeVerifyIdentity, nil
	case s.verify == nil && s.ca.value != "":
		return modeVerifyCA, nil
	case s.ssl != nil || s.ca.value != "":
		return modeRequired, nil
	case onSocket:
		return modeDisabled, nil
	}
	return modePreferred, nil
}

// apply sets cfg.TLS, except the server's name, which setAddress sets.
func (s *tlsSettings) apply(cfg *mysql.Config, onSocket bool) error {
	mode, err := s.effectiveMode(onSocket)
	if err != nil || mode == modeDisabled {
		return err
	}
	cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if err := s.setVersions(cfg.TLS); err != nil {
		return err
	}
	if err := s.loadCertificate(cfg.TLS); err != nil {
		return err
	}
	if mode == modePreferred || mode == modeRequired {
		// As in mysql(1), these two modes encrypt and verify nothing, even
		// if there is an ssl-ca.
		cfg.TLS.InsecureSkipVerify = true
		cfg.AllowFallbackToPlaintext = mode == modePreferred
		return nil
	}
	if cfg.TLS.RootCAs, err = s.loadCA(); err != nil {
		return err
	}
	if mode == modeVerifyCA {
		if cfg.TLS.RootCAs == nil { // the system's authorities vouch for any host
			return s.mode.errorf("ssl-mode=VERIFY_CA needs ssl-ca; VERIFY_IDENTITY also works with the system's authorities")
		}
		// Verify the chain here, because crypto/tls would also verify the
		// host name, which VERIFY_CA ignores.
		cfg.TLS.InsecureSkipVerify = true
		cfg.TLS.VerifyConnection = verifyChain(cfg.TLS.RootCAs)
	}
	return nil
}

// verifyChain returns a check that the server's certificate leads to one of roots.
func verifyChain(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, cert := range state.PeerCertificates[1:] {
			options.Intermediates.AddCert(cert)
		}
		_, err := state.PeerCertificates[0].Verify(options)
		return err
	}
}

// loadCA returns the certificates in the ssl-ca file, or nil, which means
// the system's, if there is no such option.
func (s *tlsSettings) loadCA() (*x509.CertPool, error) {
	if s.ca.value == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(s.ca.value)
	if err != nil {
		return nil, s.ca.errorf("ssl-ca: %v", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, s.ca.errorf("ssl-ca: there is no PEM certificate in %s", s.ca.value)
	}
	return roots, nil
}

func (s *tlsSettings) loadCertificate(config *tls.Config) error {
	switch {
	case s.cert.value == "" && s.key.value == "":
		return nil
	case s.key.value == "":
		return s.cert.errorf("ssl-cert needs ssl-key as well")
	case s.cert.value == "":
		return s.key.errorf("ssl-key needs ssl-cert as well")
	}
	cert, err := tls.LoadX509KeyPair(s.cert.value, s.key.value)
	if err != nil {
		return s.cert.errorf("ssl-cert and ssl-key: %v", err)
	}
	config.Certificates = []tls.Certificate{cert}
	return nil
}

var versions = map[string]uint16{"TLSV1.2": tls.VersionTLS12, "TLSV1.3": tls.VersionTLS13}

// setVersions sets the lowest and the highest version of the list. The servers
// themselves refuse older ones, which mysql(1) once accepted.
func (s *tlsSettings) setVersions(config *tls.Config) error {
	if !s.version.hasValue {
		return nil
	}
	for i, name := range strings.Split(strings.ToUpper(s.version.value), ",") {
		version, found := versions[strings.Trim(name, space)]
		if !found {
			return s.version.errorf("tls-version is not a list of TLSv1.2 and TLSv1.3")
		}
		if i == 0 {
			config.MinVersion, config.MaxVersion = version, version
		}
		config.MinVersion, config.MaxVersion = min(config.MinVersion, version), max(config.MaxVersion, version)
	}
	return nil
}
