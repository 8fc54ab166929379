//go:build unix

package brokertest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"
	"testing"

	"github.com/mqnotify/mqnotify/internal/child"
)

// NATS starts nats-server with JetStream. It accepts messages of MaxMessage bytes.
// Accounts are lines of its configuration that replace the user.
func NATS(tb testing.TB, accounts ...string) *Broker {
	tb.Helper()
	if len(accounts) == 0 {
		accounts = []string{fmt.Sprintf("authorization { user: %s, password: %q }", User, Password)}
	}
	return start(tb, kind{program: "nats-server", scheme: "nats", secure: "tls", prepare: func(b *Broker, _ []string) ([]string, []string, error) {
		text := fmt.Sprintf(`listen: "%s"
max_payload: %d
jetstream { store_dir: %q, max_mem: 64MB, max_file: 4GB }
%s
`, b.Addr(), MaxMessage, b.path("data"), strings.Join(accounts, "\n"))
		if c := b.secure; c != nil {
			text += fmt.Sprintf("tls { cert_file: %q, key_file: %q }\n", c.Certificate, c.Key)
		}
		return []string{"-c", b.path("conf")}, nil, b.write("conf", text)
	}, ready: func(ctx context.Context, b *Broker) error {
		return b.hears(ctx, false, "", "INFO ")
	}}, nil)
}

// Redis starts redis-server with an append-only file. It accepts values of
// MaxMessage bytes. Options are lines of its configuration.
func Redis(tb testing.TB, options ...string) *Broker {
	tb.Helper()
	return start(tb, kind{program: "redis-server", scheme: "redis", secure: "rediss", path: "/0", prepare: func(b *Broker, options []string) ([]string, []string, error) {
		if err := os.MkdirAll(b.path("data"), 0o700); err != nil {
			return nil, nil, err
		}
		if options == nil { // a restart
			return []string{b.path("conf")}, nil, nil
		}
		port := fmt.Sprintf("port %d", b.port)
		if c := b.secure; c != nil {
			port = fmt.Sprintf("port 0\ntls-port %d\ntls-auth-clients no\ntls-cert-file %s\ntls-key-file %s\ntls-ca-cert-file %s",
				b.port, c.Certificate, c.Key, c.Authority)
		}
		text := fmt.Sprintf("bind 127.0.0.1\n%s\ndir %s\nsave \"\"\nappendonly yes\nproto-max-bulk-len %d\n"+
			"user default off\nuser %s on >%s ~* &* +@all\n%s\n",
			port, b.path("data"), MaxMessage, User, Password, strings.Join(options, "\n"))
		return []string{b.path("conf")}, nil, b.write("conf", text)
	}, ready: func(ctx context.Context, b *Broker) error {
		// It answers -LOADING until it has read its data.
		return b.hears(ctx, b.secure != nil, "AUTH "+User+" "+Password+"\r\nPING\r\n", "+OK", "+PONG")
	}}, append([]string{"# options"}, options...))
}

// Mosquitto starts an MQTT broker that keeps sessions and messages through an orderly
// stop. It accepts packets of MaxMessage bytes. settings are lines of its configuration file.
func Mosquitto(tb testing.TB, settings ...string) *Broker {
	tb.Helper()
	return mosquitto(tb, strings.Join(append(settings, ""), "\n"))
}

// MosquittoSaving is a Mosquitto that stores all its data after each packet, in a time
// that grows with the data. If it is killed, it loses at most the last message that it has confirmed on each
// connection.
func MosquittoSaving(tb testing.TB) *Broker {
	tb.Helper()
	return mosquitto(tb, "autosave_interval 1\nautosave_on_changes true\n")
}

func mosquitto(tb testing.TB, more string) *Broker {
	tb.Helper()
	return start(tb, kind{program: "mosquitto", scheme: "mqtt", secure: "mqtts", prepare: func(b *Broker, _ []string) ([]string, []string, error) {
		account, err := user.Current() // without the user line it changes to an account that may not read the password file
		if err != nil {
			return nil, nil, err
		}
		text := fmt.Sprintf("user %s\nlistener %d 127.0.0.1\nallow_anonymous false\npassword_file %s\npersistence true\n"+
			"persistence_location %s/\nmax_queued_messages 0\nmax_inflight_messages 0\nmax_packet_size %d\n",
			account.Username, b.port, b.path("passwords"), b.folder, MaxMessage) + more
		if c := b.secure; c != nil {
			text += fmt.Sprintf("certfile %s\nkeyfile %s\n", c.Certificate, c.Key)
		}
		// The format of mosquitto_passwd, SHA512-PBKDF2.
		return []string{"-c", b.path("conf")}, nil, errors.Join(b.write("passwords", User+":"+mosquittoHash(Password)+"\n"), b.write("conf", text))
	}, ready: accepts}, nil)
}

// RabbitMQ starts rabbitmq-server, which takes some seconds. It accepts messages of MaxMessage bytes. With a certificate it accepts
// TLS as well: see [Broker.SecureURL].
func RabbitMQ(tb testing.TB, certificates ...Certificate) *Broker {
	tb.Helper()
	var other [3]int
	for i := range other {
		var err error
		if other[i], err = child.FreePort(); err != nil {
			tb.Fatalf("brokertest: %v", err)
		}
	}
	return start(tb, kind{program: "rabbitmq-server", slow: true, scheme: "amqp", secure: "amqps", path: "/", prepare: func(b *Broker, _ []string) ([]string, []string, error) {
		listener := "listeners.tcp.default = " + b.Addr()
		for _, c := range certificates {
			b.securePort = other[2]
			listener += fmt.Sprintf("\nlisteners.ssl.default = 127.0.0.1:%d\nssl_options.certfile = %s\nssl_options.keyfile = %s\n"+
				"ssl_options.verify = verify_none", b.securePort, c.Certificate, c.Key)
		}
		text := fmt.Sprintf("%s\ndefault_user = %s\ndefault_pass = %s\nmax_message_size = %d\n", listener, User, Password, MaxMessage)
		if err := b.write("rabbit.conf", text); err != nil {
			return nil, nil, err
		}
		environ := []string{
			"HOME=" + b.folder, "ERL_EPMD_PORT=" + strconv.Itoa(other[0]), "ERL_EPMD_ADDRESS=127.0.0.1",
			"RABBITMQ_NODENAME=mqnotify" + strconv.Itoa(b.port) + "@localhost", "RABBITMQ_DIST_PORT=" + strconv.Itoa(other[1]),
			"RABBITMQ_MNESIA_BASE=" + b.path("data"), "RABBITMQ_LOG_BASE=" + b.folder, "RABBITMQ_LOGS=-",
			"RABBITMQ_CONFIG_FILE=" + b.path("rabbit"), "RABBITMQ_ENABLED_PLUGINS_FILE=" + b.path("plugins"),
			"RABBITMQ_CONF_ENV_FILE=" + b.path("none"),
			"RUNNING_UNDER_SYSTEMD=true", // no shell stays between this process and the server
			"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
		}
		// epmd is the port mapper, which the server would start as a daemon.
		epmd, err := program("epmd")
		if err != nil {
			return nil, nil, err
		}
		b.beside, err = startProcess(epmd, []string{"-port", strconv.Itoa(other[0]), "-address", "127.0.0.1"}, environ, b.folder, b.path("epmd.log"))
		return nil, environ, err
	}, ready: func(ctx context.Context, b *Broker) error {
		return b.hears(ctx, false, "AMQP\x00\x00\x09\x01", "\x01\x00\x00")
	}}, nil)
}

// MaxMessage is the size in bytes of the largest message that every broker accepts.
const MaxMessage = 1 << 20

func (b *Broker) write(name, text string) error {
	return os.WriteFile(b.path(name), []byte(text), 0o600)
}

// hears says a text and returns nil if the broker answers with lines that begin with the wanted texts.
func (b *Broker) hears(ctx context.Context, encrypted bool, say string, want ...string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", b.Addr())
	if err != nil {
		return err
	}
	if encrypted {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // this only checks that the broker answers
	}
	defer func() { _ = conn.Close() }()
	if deadline, has := ctx.Deadline(); has {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := conn.Write([]byte(say)); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	for _, begin := range want {
		got := make([]byte, len(begin))
		for i := range got {
			if got[i], err = in.ReadByte(); err != nil {
				return err
			}
		}
		if string(got) != begin {
			return fmt.Errorf("answers %q", got)
		}
		if strings.HasPrefix(begin, "+") {
			if _, err := in.ReadString('\n'); err != nil {
				return err
			}
		}
	}
	return nil
}
