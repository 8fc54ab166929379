package serve_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/serve"
)

func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		t.Setenv("MQNOTIFY_DSN", config.FormatDSN())
		t.Setenv("TOKENS", filepath.Join(t.TempDir(), "tokens"))
		db, err := notify.OpenConfig(config)
		require.NoError(t, err)
		defer db.Close()
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
		mysqltest.Examples(t, map[string]func(){
			"201 Created\n":          ExampleServer,
			"200 OK\n":               ExampleServer_Handler,
			"the shop may publish\n": ExampleReadTokens,
		})
	})
}

// A program can serve topics over HTTP. Use Handler and Run instead if the server has other addresses too.
func ExampleServer() {
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	server, err := serve.New(db, serve.Options{Topics: []string{"orders"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // any port that is free
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener, nil) }()

	response, err := http.Post("http://"+listener.Addr().String()+"/topics/orders/messages", "text/plain", strings.NewReader("order 7"))
	if err != nil {
		fmt.Println(err)
	} else {
		fmt.Println(response.Status)
		_ = response.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		fmt.Println(err)
	}
}

// A program can add the topics to its own server.
func ExampleServer_Handler() {
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	topics, err := serve.New(db, serve.Options{Topics: []string{"orders"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- topics.Run(ctx) }() // reads, for as long as the server serves

	mux := http.NewServeMux()
	mux.Handle("/topics/", topics.Handler())
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "my own page") })
	server := httptest.NewServer(mux) // a real program uses http.Server
	response, err := server.Client().Get(server.URL + "/topics/orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = response.Body.Close()
	fmt.Println(response.Status)
	stop() // ends the streams
	server.Close()
	if err := <-ended; err != nil {
		fmt.Println(err)
	}
}

func ExampleReadTokens() {
	file := os.Getenv("TOKENS")
	const tokens = "# NAME TOKEN SCOPES; `openssl rand -hex 24` makes a good token\n" +
		"shop 0c8ad2a1a5a15a5ad5e9bd4cbe9d9b6f publish:orders read:orders\n"
	if err := os.WriteFile(file, []byte(tokens), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	lines, err := serve.ReadTokens(file)
	if err != nil {
		fmt.Println(err)
		return
	}
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	if _, err := serve.New(db, serve.Options{Topics: []string{"orders"}, Tokens: lines}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the shop may publish")
}
