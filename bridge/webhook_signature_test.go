package bridge

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// The signature equals the one in the example of Standard Webhooks, and covers the body as it was sent.
func TestWebhookSignature(t *testing.T) {
	mysqltest.Once(t)
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(testSecret, "whsec_"))
	require.NoError(t, err)
	header := http.Header{}
	sign(header, [][]byte{key}, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	require.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", header.Get("webhook-signature"))

	r := newReceiver(t)
	checked := 0
	r.answer = func(_ http.ResponseWriter, req *http.Request) bool {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return false
		}
		req.Body = io.NopCloser(strings.NewReader(string(body)))
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(req.Header.Get("webhook-id") + "." + req.Header.Get("webhook-timestamp") + "." + string(body)))
		if req.Header.Get("webhook-signature") == "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) {
			checked++
		}
		return false
	}
	send(t, target{url: r.url}.open(t, "t"), messages("t", 1, 3), 1)
	require.Equal(t, 3, checked)
	require.Equal(t, wanted(messages("t", 1, 3)), r.got["t"])
}

// A secret is accepted in every form of base64 that people paste into a URL. The error about a wrong secret says what is wrong,
// and does not show it.
func TestWebhookSecrets(t *testing.T) {
	mysqltest.Once(t)
	for range 100 {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // never fails
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
			text := "whsec_" + encoding.EncodeToString(key)
			for _, query := range []string{"secret=" + text, "secret=" + neturl.QueryEscape(text), "secret=" + testSecret + "&secret=" + text} {
				d, err := Parse("https://host/in?"+query, "t")
				require.NoError(t, err, text)
				require.NotContains(t, d.Name, text)
				got, err := signingKey(strings.ReplaceAll(text, "+", " "))
				require.NoError(t, err)
				require.Equal(t, key, got)
			}
		}
	}
	for text, want := range map[string]string{
		"whsec_MfKQ9r8GKYqrTwjUPD8I*PZIo2LaLaSw":  "character 21 after whsec_ is not base64",
		"whsec_MfKQ9r8GKYqrTwjUPD8IPZIo2LaLaSwww": "it is not base64: a character is missing, or there is one too many (33 after whsec_)",
		"whsec_MfKQ9r8GKYqr":                      "it has 9 bytes; a secret has at least 16",
		"":                                        "it has 0 bytes",
		"whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw":   "it is an Ed25519 key",
	} {
		_, err := Parse("https://host/in?secret="+text, "t")
		require.ErrorIs(t, err, notify.ErrOptions)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "MfKQ9r8")
	}
}

// While a receiver changes its secret, each message is signed with both secrets.
func TestWebhookRotation(t *testing.T) {
	mysqltest.Once(t)
	const next = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	var header http.Header
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		header = r.Header
		body, _ = io.ReadAll(r.Body)
	}))
	defer server.Close()
	send(t, target{url: func(string) string { return server.URL + "/in?secret=" + next + "&secret=" + testSecret }}.open(t, "t"), messages("t", 1, 1), 1)
	var want []string
	for _, text := range []string{next, testSecret} {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
		require.NoError(t, err)
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(header.Get("webhook-id") + "." + header.Get("webhook-timestamp") + "." + string(body)))
		want = append(want, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	require.Equal(t, strings.Join(want, " "), header.Get("webhook-signature"))
}
