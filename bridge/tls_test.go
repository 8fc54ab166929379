package bridge

import (
	"context"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A bridge and an import connect to each broker over TLS with the authority in ca=. Without ca=, with another authority, or with
// another host name, they fail with an error that names the remedy and not the password. TestAMQP tests this of RabbitMQ.
func TestTLS(t *testing.T) {
	mysqltest.Once(t)
	c := brokertest.NewCertificate(t)
	for name, begin := range map[string]func(tb testing.TB) *brokertest.Broker{
		"nats":  func(tb testing.TB) *brokertest.Broker { return brokertest.NATS(tb) },
		"redis": func(tb testing.TB) *brokertest.Broker { return brokertest.Redis(tb) },
		"mqtt":  func(tb testing.TB) *brokertest.Broker { return brokertest.Mosquitto(tb) },
	} {
		t.Run(name, func(t *testing.T) {
			b := brokertest.WithTLS(t, c, begin)
			testTLS(t, name, c, b.URL)
			if name == "nats" { // the other brokers take a TLS hello for an incomplete packet, and wait
				good := b.URL("stream=s&ca=" + c.Authority)
				refused(t, strings.Replace(good, b.Addr(), begin(t).Addr(), 1), "has no TLS", new(*PermanentError))
			}
		})
	}
}

// testTLS tests a broker that has this certificate. url returns the URL of its port with TLS.
func testTLS(t *testing.T, name string, c brokertest.Certificate, url func(query string) string) {
	query := map[string]string{"nats": "stream=s", "redis": "stream=s", "mqtt": "topic=s", "amqp": "queue=s"}[name]
	good := url(query + "&ca=" + c.Authority)
	var from messageSource
	if name == "mqtt" { // MQTT keeps messages only for existing subscriptions
		from = openOrigin(t, good)
	}
	send(t, target{url: func(string) string { return good }}.open(t, "orders"), messages("orders", 1, 20), 20)
	if from == nil {
		from = openOrigin(t, good)
	}
	receive(t, from, messages("orders", 1, 20))

	refused(t, url(query), "ca=/path.pem", new(x509.UnknownAuthorityError))
	refused(t, url(query+"&ca="+brokertest.NewCertificate(t).Authority), "ca=/path.pem", new(x509.UnknownAuthorityError))
	refused(t, strings.Replace(good, "127.0.0.1", "localhost", 1), "that is in its certificate", new(x509.HostnameError))
	if plain := map[string]string{"redis": "redis", "mqtt": "mqtt", "amqp": "amqp"}[name]; plain != "" {
		hungUp := strings.Replace(url(query), plain+"s", plain, 1)
		refused(t, hungUp, "if it requires TLS, write "+withTLS[plain], nil)
	}
}

func openOrigin(t *testing.T, url string) messageSource {
	t.Helper()
	origin, err := parseOrigin(url, "orders")
	require.NoError(t, err)
	require.NotContains(t, origin.Name, brokertest.Password)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	source, err := origin.Open(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, source.Close()) })
	return source
}

// receive checks that the next messages are these, and acknowledges them.
func receive(t *testing.T, from messageSource, want []consumer.Message) {
	t.Helper()
	for len(want) > 0 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		received, err := from.Receive(ctx, len(want))
		cancel()
		require.NoError(t, err)
		for _, r := range received {
			require.Equal(t, string(want[0].Payload), string(r.Payload))
			want = want[1:]
		}
		require.NoError(t, from.Ack(t.Context()))
	}
}

// refused checks that neither a Sink nor a messageSource can be opened.
func refused(t *testing.T, url, remedy string, is any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	to, err := Parse(url, "orders")
	require.NoError(t, err)
	_, sinkErr := to.Open(ctx)
	origin, err := parseOrigin(url, "orders")
	require.NoError(t, err)
	_, sourceErr := origin.Open(ctx)
	for _, err := range []error{sinkErr, sourceErr} {
		require.ErrorContains(t, err, remedy)
		require.NotContains(t, err.Error(), brokertest.Password)
		if is != nil {
			require.ErrorAs(t, err, is)
		}
	}
	require.NoError(t, ctx.Err(), "the error comes at once")
}

// The test runs with kfake, which has real TLS.
func TestKafkaTLS(t *testing.T) {
	mysqltest.Once(t)
	c := brokertest.NewCertificate(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.AllowAutoTopicCreation(), kfake.TLS(c.Server(t)))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	url := "kafka://" + cluster.ListenAddrs()[0] + "/?tls=true"
	send(t, target{url: func(string) string { return url + "&ca=" + c.Authority }}.open(t, "orders"), messages("orders", 1, 20), 20)
	d, err := Parse(url, "orders")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = d.Open(ctx)
	require.ErrorAs(t, err, new(x509.UnknownAuthorityError))
	require.ErrorContains(t, err, "ca=/path.pem")
}

func TestWebhookTLS(t *testing.T) {
	mysqltest.Once(t)
	c := brokertest.NewCertificate(t)
	var got []string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, string(body))
	}))
	server.TLS = c.Server(t)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	send(t, target{url: func(string) string { return server.URL + "/s3cret?ca=" + c.Authority }}.open(t, "orders"), messages("orders", 1, 2), 2)
	require.Equal(t, []string{`{"order":1}`, `{"order":2}`}, got)
	_, err := target{url: func(string) string { return server.URL + "/s3cret" }}.open(t, "orders").Send(t.Context(), messages("orders", 3, 3))
	require.ErrorAs(t, err, new(x509.UnknownAuthorityError))
	require.ErrorContains(t, err, "ca=/path.pem")
	require.NotContains(t, err.Error(), "s3cret")
}

// A wrong ca= is an error before anything connects.
func TestAuthorityRefused(t *testing.T) {
	mysqltest.Once(t)
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for url, want := range map[string]string{
		"rediss://me:s3cret@host/?ca=/no/such.pem": "no such file",
		"mqtts://me:s3cret@host/?ca=" + empty:      "no certificate in PEM",
		"tls://me:s3cret@host/?ca=" + empty:        "no certificate in PEM",
		"redis://me:s3cret@host/?ca=" + empty:      "write rediss://",
		"amqp://me:s3cret@host/?ca=" + empty:       "write amqps://",
		"mqtt://me:s3cret@host/?ca=" + empty:       "write mqtts://",
		"kafka://me:s3cret@host/?ca=" + empty:      "add tls=true",
		"http://host/s3cret?ca=" + empty:           "write https://",
	} {
		_, err := Parse(url, "orders")
		require.ErrorIs(t, err, notify.ErrOptions, url)
		require.ErrorContains(t, err, want, url)
		require.NotContains(t, err.Error(), "s3cret", url)
	}
}
