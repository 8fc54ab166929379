package doctor

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/dsn"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A connection over which another server could get the password is a warning with the reason and a remedy. That is the case
// without TLS, and with TLS that does not verify the server. A verified connection is no warning.
func TestUnverified(t *testing.T) {
	helper := httptest.NewTLSServer(nil) // for its certificate, which is for example.com
	defer helper.Close()
	key, err := x509.MarshalPKCS8PrivateKey(helper.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	certFile, keyFile := write("cert.pem", "CERTIFICATE", helper.Certificate().Raw), write("key.pem", "PRIVATE KEY", key)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t, "--ssl-cert="+certFile, "--ssl-key="+keyFile)
		root, _ := initialised(t, own)
		account := own.User(t, root, "ALL ON "+root.DBName+".*")
		for tls, why := range map[string]string{
			"false":          "the connection is not encrypted",
			"preferred":      "only if the server says that it can, and its certificate is not verified",
			"skip-verify":    "the server's certificate is not verified",
			"ca:" + certFile: "",
		} {
			config := account.Clone()
			config.Addr = "example.com:3306"
			config.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, own.Addr())
			}
			require.NoError(t, dsn.SetTLS(config, tls))
			found := examineWith(t, open(t, config), Options{Unverified: dsn.Unverified(config)}).of("connection")
			says(t, found[0], OK, "connected to database", "")
			if why == "" {
				assert.Len(t, found, 1, tls)
				continue
			}
			require.Len(t, found, 2, tls)
			says(t, found[1], Warning, "another server could take this one's place and get the password", "tls= in the DSN: true, ca:/path.pem or sha256:FINGERPRINT")
			assert.Contains(t, found[1].Text, why)
			assert.NotContains(t, found.String(), account.Passwd)
		}
	})
}
