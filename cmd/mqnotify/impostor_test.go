package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/dsn"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// impostor is a server that asks every client for the full exchange of caching_sha2_password. In it the client sends the
// password: encrypted with a key of the server, or in clear text over TLS.
type impostor struct {
	addr        string
	key         *rsa.PrivateKey
	certificate *tls.Certificate // nil without TLS
	clear       bool             // the impostor asks for mysql_clear_password instead
	mu          sync.Mutex
	passwords   []string
}

func newImpostor(t *testing.T, withTLS bool) *impostor {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	i := &impostor{key: key}
	if withTLS {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		require.NoError(t, err)
		i.certificate = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	i.addr = listener.Addr().String()
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				_ = i.serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	return i
}

func (i *impostor) got() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.passwords
}

func writePacket(w io.Writer, sequence byte, payload []byte) error {
	_, err := w.Write(append([]byte{byte(len(payload)), byte(len(payload) >> 8), byte(len(payload) >> 16), sequence}, payload...))
	return err
}

func readPacket(r io.Reader) (payload []byte, sequence byte, err error) {
	var header [4]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, 0, err
	}
	payload = make([]byte, int(header[0])|int(header[1])<<8|int(header[2])<<16)
	_, err = io.ReadFull(r, payload)
	return payload, header[3], err
}

func (i *impostor) serve(conn net.Conn) error {
	scramble := []byte("01234567890123456789")
	capabilities := uint32(0x00000001 | 0x00000004 | 0x00000008 | 0x00000200 | 0x00002000 | 0x00008000 | 0x00080000) // for the client
	if i.certificate != nil {
		capabilities |= 0x00000800
	}
	greeting := append([]byte{10}, "8.4.0\x00\x01\x00\x00\x00"...)
	greeting = append(append(greeting, scramble[:8]...), 0, byte(capabilities), byte(capabilities>>8), 45, 2, 0, byte(capabilities>>16), byte(capabilities>>24), 21)
	greeting = append(append(append(greeting, make([]byte, 10)...), scramble[8:]...), 0)
	greeting = append(greeting, "caching_sha2_password\x00"...)
	if err := writePacket(conn, 0, greeting); err != nil {
		return err
	}
	response, sequence, err := readPacket(conn)
	if err != nil {
		return err
	}
	encrypted := len(response) == 32 // the length of a request for TLS
	if encrypted {
		secure := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*i.certificate}, MinVersion: tls.VersionTLS13}) //nolint:gosec // the impostor plays an attacker
		conn = secure
		if _, sequence, err = readPacket(conn); err != nil {
			return err
		}
	}
	request := []byte{1, 4} // asks for the full exchange
	if i.clear {
		request = []byte("\xfemysql_clear_password\x00")
	}
	if err := writePacket(conn, sequence+1, request); err != nil {
		return err
	}
	answer, sequence, err := readPacket(conn)
	if err != nil {
		return err
	}
	if len(answer) == 1 && answer[0] == 2 { // the client asks for the key
		der, err := x509.MarshalPKIXPublicKey(&i.key.PublicKey)
		if err != nil {
			return err
		}
		text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
		if err := writePacket(conn, sequence+1, append([]byte{1}, text...)); err != nil {
			return err
		}
		if answer, _, err = readPacket(conn); err != nil {
			return err
		}
		if answer, err = rsa.DecryptOAEP(sha1.New(), nil, i.key, answer, nil); err != nil { //nolint:gosec // the protocol uses SHA-1
			return err
		}
		for n := range answer {
			answer[n] ^= scramble[n%len(scramble)]
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.passwords = append(i.passwords, strings.TrimRight(string(answer), "\x00"))
	return errors.New("that is all")
}

// A server that takes the place of another one on the network gets the password, unless the connection verifies the server by
// an authority or by the fingerprint of its certificate.
func TestImpostor(t *testing.T) {
	mysqltest.Once(t)
	const password = "s3cret"
	folder := t.TempDir()
	genuine := newImpostor(t, true) // the flags ca: and sha256: name the certificate of this server
	sum := sha256.Sum256(genuine.certificate.Certificate[0])
	fingerprint := hex.EncodeToString(sum[:])
	ca := filepath.Join(folder, "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: genuine.certificate.Certificate[0]}), 0o600))
	for _, withTLS := range []bool{false, true} {
		for tlsFlag, safe := range map[string]bool{
			"": false, "preferred": false, "skip-verify": withTLS == false, // skip-verify demands TLS
			"true": true, "ca:" + ca: true, "sha256:" + fingerprint: true,
		} {
			other := newImpostor(t, withTLS)
			config, err := dsn.Parse("me:" + password + "@tcp(" + other.addr + ")/shop")
			require.NoError(t, err)
			args := []string{"status", "orders"}
			if tlsFlag != "" {
				args = append(args, "--tls", tlsFlag)
			}
			if safe {
				args = append(args, "--wait") // it does not wait for a server that answers and will never be accepted
			}
			message := fail(t, exitFailed, config, args...)
			require.NotContains(t, message, password)
			require.Equal(t, safe, len(other.got()) == 0, "%q, TLS %v: %q", tlsFlag, withTLS, other.got())
			if !safe {
				require.Equal(t, password, other.got()[0])
			}
			if withTLS && tlsFlag == "true" {
				require.Contains(t, message, "--tls ca:/path.pem")
			}
			if withTLS && strings.HasPrefix(tlsFlag, "sha256:") {
				require.Contains(t, message, "the server's certificate is not the one of tls=sha256:...: it has the fingerprint")
			}
		}
	}
	// Nor does it wait for a server that refuses the client's version of TLS.
	cnf := filepath.Join(folder, "my.cnf")
	host, port, err := net.SplitHostPort(newImpostor(t, true).addr)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cnf, []byte("[client]\nhost="+host+"\nport="+port+"\nssl-mode=REQUIRED\ntls-version=TLSv1.2\ndatabase=shop\n"), 0o600))
	r := mqnotify(t, nil, "", "status", "orders", "--defaults-file", cnf, "--wait")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "protocol version")

	for _, form := range []string{"ca:" + ca, "sha256:" + strings.ToUpper(fingerprint)} { // the right server gets the password
		config, err := dsn.Parse("me:" + password + "@tcp(" + genuine.addr + ")/shop")
		require.NoError(t, err)
		before := len(genuine.got())
		fail(t, exitFailed, config, "status", "orders", "--tls", form)
		require.Greater(t, len(genuine.got()), before, form)
	}
}

// A server that asks for the password in clear text does not get it, and the error does not advise to send it.
func TestCleartextPassword(t *testing.T) {
	mysqltest.Once(t)
	for _, withTLS := range []bool{false, true} {
		other := newImpostor(t, withTLS)
		other.clear = true
		config, err := dsn.Parse("me:s3cret@tcp(" + other.addr + ")/shop?tls=preferred")
		require.NoError(t, err)
		for _, command := range []string{"status", "doctor"} {
			r := mqnotify(t, config, "", command, "orders", "--wait")
			require.Equal(t, exitFailed, r.code)
			require.Contains(t, r.out+r.err, "in clear text")
			require.NotContains(t, r.out+r.err, "allowCleartextPasswords")
		}
		require.Empty(t, other.got())
	}
}

// If another server could get the password over a connection, the log warns once, and doctor warns as well.
func TestUnverifiedIsReported(t *testing.T) {
	mysqltest.Once(t)
	for query, want := range map[string]bool{"": true, "?tls=preferred": true, "?tls=skip-verify": true, "?tls=true": false, "?tls=sha256:" + strings.Repeat("ab", 32): false} {
		config, err := dsn.Parse("mysql://me:s3cret@192.0.2.1:1/shop" + query)
		require.NoError(t, err)
		require.Equal(t, want, dsn.Unverified(config) != "", query)
		a := newApp(streams{in: strings.NewReader(""), out: io.Discard, err: &text{}, environ: []string{envDSN + "=mysql://me:s3cret@192.0.2.1:1/shop" + query}})
		said := &text{}
		a.stderr.to = said
		for range 2 {
			_, err = a.config()
			require.NoError(t, err)
		}
		require.Equal(t, want, strings.Count(said.String(), "another server could take this one's place") == 1, said.String())
	}
	for _, safe := range []string{"me:x@tcp(127.0.0.1:3306)/shop", "me:x@unix(/run/s.sock)/shop", "me@tcp(db:3306)/shop", "me:x@tcp([::1]:3306)/shop"} {
		config, err := dsn.Parse(safe)
		require.NoError(t, err)
		require.Empty(t, dsn.Unverified(config), safe)
	}
}
