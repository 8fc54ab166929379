package dsn_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/dsn"
)

// Both forms of a DSN accept the forms of tls= that verify the server. A path may be written with or without
// percent-encoding in a URL. Errors show no value.
func TestVerifiedTLS(t *testing.T) {
	pin := strings.Repeat("aB", 32)
	for input, name := range map[string]string{
		"u:p@tcp(db:1)/shop?tls=sha256:" + pin + "&timeout=5s": "",
		"mysql://u:p@db:1/shop?timeout=5s&tls=sha256:" + pin:   "",
		"mysql://u:p@db:1/shop?tls=sha256%3A" + pin:            "",
		"mysql://u:p@db:1/shop?tls=true":                       "db",
	} {
		cfg, err := dsn.Parse(input)
		require.NoError(t, err, input)
		require.NotNil(t, cfg.TLS, input)
		require.Equal(t, name, cfg.TLS.ServerName, input)
		require.Equal(t, name == "", cfg.TLS.VerifyConnection != nil)
		require.False(t, cfg.AllowFallbackToPlaintext)
		require.Equal(t, "shop", cfg.DBName)
		require.Empty(t, dsn.Unverified(cfg))
	}
	file := filepath.Join(t.TempDir(), "no-ca.pem")
	require.NoError(t, os.WriteFile(file, []byte("s3cret"), 0o600))
	for value, want := range map[string]string{
		"sha256:s3cret": "64 hexadecimal digits", "sha256:": "64 hexadecimal digits", "sha256:" + pin + "00": "64 hexadecimal digits",
		"ca:" + file: "no certificate in PEM", "ca:": "no such file", "s3cret": "tls takes true",
	} {
		_, err := dsn.Parse("mysql://u:p@db/shop?tls=" + value)
		require.ErrorContains(t, err, want, value)
		require.NotContains(t, err.Error(), "s3cret")
	}
}
