package dsn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// authority is a CA for a test, with its certificate in a file.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	ca := &authority{dir: t.TempDir()}
	ca.cert, ca.key = ca.issue(t, "ca", &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return ca
}

// path returns the path of the PEM file of that name.
func (ca *authority) path(name string) string { return filepath.Join(ca.dir, name+".pem") }

// issue writes NAME.pem and NAME-key.pem; the first certificate signs itself.
func (ca *authority) issue(t *testing.T, name string, cert *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert.SerialNumber = big.NewInt(time.Now().UnixNano())
	cert.Subject = pkix.Name{CommonName: name}
	cert.NotAfter = time.Now().Add(time.Hour)
	parent, signer := ca.cert, ca.key
	if parent == nil {
		parent, signer = cert, key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	for path, block := range map[string]*pem.Block{
		ca.path(name):          {Type: "CERTIFICATE", Bytes: der},
		ca.path(name + "-key"): {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return parsed, key
}

// connect makes a handshake between a client with these options and a server with the
// certificate "server" of ca. It returns the certificates that the client presented,
// and the client's error.
func (ca *authority) connect(t *testing.T, options string) ([]*x509.Certificate, error) {
	t.Helper()
	cfg, err := FromDefaultsFile(write(t, "my.cnf", "[client]\nhost=db.example\n"+options))
	require.NoError(t, err)
	require.NotNil(t, cfg.TLS)
	cert, err := tls.LoadX509KeyPair(ca.path("server"), ca.path("server-key"))
	require.NoError(t, err)

	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert,
	})
	require.NoError(t, err)
	defer listener.Close()

	shown := make(chan []*x509.Certificate, 1)
	go func() {
		defer close(shown)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		server := conn.(*tls.Conn)
		_ = server.HandshakeContext(t.Context()) // the client's error is the one that counts
		shown <- server.ConnectionState().PeerCertificates
	}()
	client, err := (&tls.Dialer{Config: cfg.TLS}).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err == nil {
		client.Close()
	}
	return <-shown, err
}

func TestTLSVerifies(t *testing.T) {
	ours, stranger := newAuthority(t), newAuthority(t)
	ours.issue(t, "server", &x509.Certificate{DNSNames: []string{"db.example"}})
	stranger.issue(t, "server", &x509.Certificate{DNSNames: []string{"db.example"}})
	misnamed := newAuthority(t)
	misnamed.issue(t, "server", &x509.Certificate{DNSNames: []string{"other.example"}})

	for _, mode := range []string{"ssl-mode=verify_ca\n", "ssl-mode=VERIFY_IDENTITY\n", "ssl-verify-server-cert\n", ""} {
		_, err := ours.connect(t, mode+"ssl-ca="+ours.path("ca"))
		assert.NoError(t, err, mode)

		_, err = stranger.connect(t, mode+"ssl-ca="+ours.path("ca"))
		assert.ErrorAs(t, err, new(x509.UnknownAuthorityError), mode)
	}
	_, err := misnamed.connect(t, "ssl-mode=VERIFY_CA\nssl-ca="+misnamed.path("ca"))
	assert.NoError(t, err, "VERIFY_CA does not look at the host name")
	_, err = misnamed.connect(t, "ssl-mode=VERIFY_IDENTITY\nssl-ca="+misnamed.path("ca"))
	assert.ErrorAs(t, err, new(x509.HostnameError))

	// Without ssl-ca the system's CAs are used, which do not include the test's.
	_, err = ours.connect(t, "ssl-mode=VERIFY_IDENTITY")
	assert.Error(t, err)
	for _, mode := range []string{"PREFERRED", "REQUIRED"} {
		_, err = stranger.connect(t, "ssl-mode="+mode+"\nssl-ca="+ours.path("ca"))
		assert.NoError(t, err, "%s does not verify, as with mysql", mode)
	}
}

func TestTLSVerifiesThroughAnIntermediate(t *testing.T) {
	root := newAuthority(t)
	middle := &authority{dir: root.dir}
	middle.cert, middle.key = root.issue(t, "middle", &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	middle.issue(t, "server", &x509.Certificate{})
	chain, err := os.ReadFile(root.path("middle"))
	require.NoError(t, err)
	leaf, err := os.ReadFile(root.path("server"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(root.path("server"), append(leaf, chain...), 0o600))

	_, err = middle.connect(t, "ssl-mode=VERIFY_CA\nssl-ca="+root.path("ca"))
	assert.NoError(t, err)
}

func TestTLSShowsTheClientsCertificate(t *testing.T) {
	ca := newAuthority(t)
	ca.issue(t, "server", &x509.Certificate{DNSNames: []string{"db.example"}})
	ca.issue(t, "client", &x509.Certificate{})
	shown, err := ca.connect(t, "ssl-ca="+ca.path("ca")+"\nssl-cert="+ca.path("client")+"\nssl-key="+ca.path("client-key"))
	require.NoError(t, err)
	require.Len(t, shown, 1)
	assert.Equal(t, "client", shown[0].Subject.CommonName)

	options := "[client]\nssl-mode=REQUIRED\ntls-version=TLSv1.3\nssl-cert=" + ca.path("client") + "\nssl-key=" + ca.path("client-key")
	cfg, err := FromDefaultsFile(write(t, "my.cnf", options))
	require.NoError(t, err)
	require.NoError(t, SetTLS(cfg, "ca:"+ca.path("ca")))
	assert.Len(t, cfg.TLS.Certificates, 1)
	assert.Equal(t, uint16(tls.VersionTLS13), cfg.TLS.MinVersion)
	assert.False(t, cfg.TLS.InsecureSkipVerify)

	_, err = FromDefaultsFile(write(t, "my.cnf", "[client]\nssl-mode=VERIFY_CA"))
	assert.ErrorContains(t, err, "my.cnf:2: ssl-mode=VERIFY_CA needs ssl-ca")
	_, err = FromDefaultsFile(write(t, "my.cnf", "[client]\nssl-cert="+ca.path("client")+"\nssl-key="+ca.path("server-key")))
	assert.ErrorContains(t, err, "my.cnf:2: ssl-cert and ssl-key: ")
	_, err = FromDefaultsFile(write(t, "my.cnf", "[client]\nssl-ca="+ca.path("client-key")))
	assert.ErrorContains(t, err, "my.cnf:2: ssl-ca: there is no PEM certificate in ")
}

// The resulting mode of the options, as the driver sees it.
func TestTLSModes(t *testing.T) {
	ca := newAuthority(t)
	withCA := "ssl-ca=" + ca.path("ca") + "\n"
	const (
		off       = "no TLS"
		preferred = "TLS if the server can"
		required  = "TLS, not verified"
		chain     = "TLS, chain verified"
		identity  = "TLS, chain and host verified"
	)
	for options, want := range map[string]string{
		"":                                         preferred,
		"socket=/my.sock":                          off,
		"ssl-mode=PREFERRED\nsocket=/my.sock":      off,
		"ssl-mode=preferred":                       preferred,
		"ssl_mode=DISABLED":                        off,
		withCA + "ssl-mode=DISABLED":               off,
		withCA + "ssl-mode=REQUIRED":               required,
		"ssl-mode=REQUIRED\nsocket=/my.sock":       required,
		withCA:                                     chain,
		withCA + "ssl=0":                           off,
		withCA + "skip-ssl":                        off,
		withCA + "skip-ssl=0":                      chain,
		withCA + "ssl":                             chain,
		withCA + "ssl-verify-server-cert":          identity,
		withCA + "disable-ssl-verify-server-cert":  required,
		withCA + "ssl-verify-server-cert=OFF\nssl": required,
		"ssl=TRUE":                                 required,
		"enable-ssl\nssl-verify-server-cert=on":    identity,
		"skip-ssl\nssl-verify-server-cert":         off,
		"skip-ssl-verify-server-cert":              preferred,
		"skip-ssl\nssl-mode=VERIFY_IDENTITY":       identity,
		withCA + "loose-ssl-mode=VERIFY_CA":        chain,
	} {
		t.Run(options, func(t *testing.T) {
			cfg, err := FromDefaultsFile(write(t, "my.cnf", "[client]\n"+options))
			require.NoError(t, err)
			got := off
			switch c := cfg.TLS; {
			case c == nil:
			case !c.InsecureSkipVerify:
				got = identity
				assert.NotEmpty(t, c.ServerName)
			case c.VerifyConnection != nil:
				got = chain
			case cfg.AllowFallbackToPlaintext:
				got = preferred
			default:
				got = required
			}
			assert.Equal(t, want, got)
		})
	}
}

func TestTLSServerNameOnASocket(t *testing.T) {
	cfg, err := FromDefaultsFile(write(t, "my.cnf", "[client]\nsocket=/my.sock\nssl-mode=VERIFY_IDENTITY"))
	require.NoError(t, err)
	assert.Equal(t, "localhost", cfg.TLS.ServerName)
}

func TestTLSVersions(t *testing.T) {
	for list, want := range map[string][2]uint16{
		"TLSv1.2":          {tls.VersionTLS12, tls.VersionTLS12},
		"tlsv1.3":          {tls.VersionTLS13, tls.VersionTLS13},
		"TLSv1.3, TLSv1.2": {tls.VersionTLS12, tls.VersionTLS13},
	} {
		cfg, err := FromDefaultsFile(write(t, "my.cnf", "[client]\ntls-version="+list))
		require.NoError(t, err)
		assert.Equal(t, want, [2]uint16{cfg.TLS.MinVersion, cfg.TLS.MaxVersion}, list)
	}
}
