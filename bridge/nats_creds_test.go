package bridge

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A credentials file in nsc's format gives access to its account. The server refuses the file of an account that it does not
// know, and no error contains the seed.
func TestNATSCreds(t *testing.T) {
	mysqltest.Once(t)
	operator, account, system, stranger := nkey(t, nkeys.CreateOperator), nkey(t, nkeys.CreateAccount), nkey(t, nkeys.CreateAccount), nkey(t, nkeys.CreateAccount)
	limits := map[string]any{
		"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
		"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
	}
	shop := jwt(t, operator, account, map[string]any{"type": "account", "limits": limits})
	sys := jwt(t, operator, system, map[string]any{"type": "account", "limits": map[string]any{"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1}})
	b := brokertest.NATS(t,
		"operator: "+jwt(t, operator, operator, map[string]any{"type": "operator"}),
		"system_account: "+public(t, system), "resolver: MEMORY",
		fmt.Sprintf("resolver_preload: { %s: %s, %s: %s }", public(t, account), shop, public(t, system), sys),
	)
	url := "nats://" + b.Addr() + "/?stream=s&creds="
	good, _ := credentials(t, account)
	send(t, target{url: func(string) string { return url + good }}.open(t, "orders"), messages("orders", 1, 20), 20)
	receive(t, openOrigin(t, url+good), messages("orders", 1, 20))

	bad, seed := credentials(t, stranger)
	for file, permanent := range map[string]bool{bad: true, filepath.Join(t.TempDir(), "none.creds"): false} {
		d, err := Parse(url+file, "orders")
		require.NoError(t, err)
		_, err = d.Open(t.Context())
		require.Equal(t, permanent, asError(err, new(*PermanentError)), "%v", err)
		require.ErrorContains(t, err, map[bool]string{true: "the credentials are refused", false: "none.creds"}[permanent])
		require.NotContains(t, err.Error(), seed)
	}
}

func nkey(t *testing.T, create func() (nkeys.KeyPair, error)) nkeys.KeyPair {
	t.Helper()
	key, err := create()
	require.NoError(t, err)
	return key
}

func public(t *testing.T, key nkeys.KeyPair) string {
	t.Helper()
	text, err := key.PublicKey()
	require.NoError(t, err)
	return text
}

// jwt returns a token in which the issuer makes claims about the subject.
func jwt(t *testing.T, issuer, subject nkeys.KeyPair, says map[string]any) string {
	t.Helper()
	says["version"] = 2
	claims, err := json.Marshal(map[string]any{"iat": 1, "jti": "x", "iss": public(t, issuer), "sub": public(t, subject), "name": "test", "nats": says})
	require.NoError(t, err)
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"typ":"JWT","alg":"ed25519-nkey"}`)) + "." + encode(claims)
	signature, err := issuer.Sign([]byte(text))
	require.NoError(t, err)
	return text + "." + encode(signature)
}

// credentials writes the credentials file of a new user of the account. It also returns the seed in the file.
func credentials(t *testing.T, account nkeys.KeyPair) (file, seed string) {
	t.Helper()
	user := nkey(t, nkeys.CreateUser)
	key, err := user.Seed()
	require.NoError(t, err)
	token := jwt(t, account, user, map[string]any{"type": "user", "subs": -1, "data": -1, "payload": -1})
	file = filepath.Join(t.TempDir(), "shop.creds")
	text := "-----BEGIN NATS USER JWT-----\n" + token + "\n------END NATS USER JWT------\n\n" +
		"-----BEGIN USER NKEY SEED-----\n" + string(key) + "\n------END USER NKEY SEED------\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file, string(key)
}
