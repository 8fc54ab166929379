package dsn

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// TLSForms describes the values of tls= in a DSN and of SetTLS, for people.
const TLSForms = "true (the system's authorities), ca:/path.pem (those in the file), sha256:FINGERPRINT (this certificate alone), " +
	"or, which verify nothing, skip-verify, preferred and false"

// FingerprintError means that a server's certificate is not the pinned one.
type FingerprintError struct {
	Got string // the fingerprint of the server's certificate: SHA-256, in hex
}

func (e *FingerprintError) Error() string {
	return "the server's certificate is not the one of tls=sha256:...: it has the fingerprint " + e.Got
}

// SetTLS sets how cfg verifies the server; see TLSForms. Of an earlier TLS configuration it keeps the client's certificate and the versions.
// Its errors show no value.
func SetTLS(cfg *mysql.Config, value string) error {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if before := cfg.TLS; before != nil {
		config.Certificates, config.MinVersion, config.MaxVersion = before.Certificates, max(config.MinVersion, before.MinVersion), before.MaxVersion
	}
	file, isCA := strings.CutPrefix(value, "ca:")
	pin, isPin := strings.CutPrefix(value, "sha256:")
	switch {
	case isCA:
		pem, err := os.ReadFile(file)
		if err != nil {
			if failed := (*fs.PathError)(nil); errors.As(err, &failed) { // without the path
				err = failed.Err
			}
			return fmt.Errorf("tls=ca: the file can't be read: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return errors.New("tls=ca: the file has no certificate in PEM")
		}
	case isPin:
		want, err := hex.DecodeString(strings.ReplaceAll(pin, ":", ""))
		if err != nil || len(want) != sha256.Size {
			return errors.New("tls=sha256: a fingerprint has 64 hexadecimal digits, as `openssl x509 -noout -fingerprint -sha256 -in server-cert.pem` shows it")
		}
		// crypto/tls would verify the chain and the host name; a pinned certificate needs neither.
		config.InsecureSkipVerify = true
		config.VerifyConnection = func(state tls.ConnectionState) error {
			if got := sha256.Sum256(state.PeerCertificates[0].Raw); !bytes.Equal(got[:], want) {
				return &FingerprintError{hex.EncodeToString(got[:])}
			}
			return nil
		}
	case value == "true":
	case value == "skip-verify", value == "preferred":
		config.InsecureSkipVerify = true
	case value == "false":
		config = nil
	default:
		return errors.New("tls is none of " + TLSForms)
	}
	cfg.TLS, cfg.TLSConfig, cfg.AllowFallbackToPlaintext = config, "", value == "preferred"
	if config != nil && !config.InsecureSkipVerify {
		config.ServerName = "localhost" // for a socket
		if host, _, err := net.SplitHostPort(cfg.Addr); err == nil && cfg.Net != "unix" {
			config.ServerName = host
		}
	}
	return nil
}

// Unverified returns why another server could take this one's place on the network and get the password, or an empty text if
// none could. A socket, and an address of this machine, count as safe.
func Unverified(cfg *mysql.Config) string {
	host, _, _ := net.SplitHostPort(cfg.Addr)
	address, err := netip.ParseAddr(host)
	switch {
	case cfg.Passwd == "", cfg.Net == "unix", host == "localhost", err == nil && address.IsLoopback():
		return ""
	case cfg.TLS == nil:
		return "the connection is not encrypted"
	case cfg.AllowFallbackToPlaintext:
		return "the connection is encrypted only if the server says that it can, and its certificate is not verified"
	case cfg.TLS.InsecureSkipVerify && cfg.TLS.VerifyConnection == nil:
		return "the server's certificate is not verified"
	}
	return ""
}

// takeTLS removes tls=ca:... and tls=sha256:... from the parameters, because the driver does not know these forms.
func takeTLS(params string) (others, value string, err error) {
	var rest []string
	for pair := range strings.SplitSeq(params, "&") {
		name, text, _ := strings.Cut(pair, "=")
		decoded, err := url.QueryUnescape(text)
		if name != "tls" || !strings.HasPrefix(decoded, "ca:") && !strings.HasPrefix(decoded, "sha256:") {
			rest = append(rest, pair)
			continue
		}
		if err != nil {
			return "", "", &SyntaxError{"the parameter tls takes " + known["tls"]}
		}
		value = decoded
	}
	return strings.Join(rest, "&"), value, nil
}

// setTLS calls SetTLS with a value that takeTLS has found.
func setTLS(cfg *mysql.Config, value string) error {
	if value == "" {
		return nil
	}
	if err := SetTLS(cfg, value); err != nil {
		return &SyntaxError{"the parameter " + err.Error()}
	}
	return nil
}
