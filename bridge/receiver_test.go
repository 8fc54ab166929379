package bridge

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/stretchr/testify/require"

	ports "github.com/mqnotify/mqnotify/internal/child"
)

const testSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver is a server that webhooks call.
type receiver struct {
	mu     sync.Mutex
	got    map[string][]stored // by topic
	answer func(w http.ResponseWriter, r *http.Request) bool
	server *httptest.Server
	addr   string
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{got: map[string][]stored{}}
	port, err := ports.FreePort() // fixed, because the receiver listens there again after a restart
	require.NoError(t, err)
	r.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	r.listen(t, r.addr)
	t.Cleanup(func() { r.server.Close() })
	return r
}

func (r *receiver) listen(t *testing.T, addr string) {
	t.Helper()
	listener, err := ports.Listen("tcp", addr)
	require.NoError(t, err)
	r.server = httptest.NewUnstartedServer(r)
	r.server.Listener = listener
	r.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	r.server.Start()
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answer != nil && r.answer(w, req) {
		return
	}
	if req.URL.Query().Get("key") == wrongPassword {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if req.ContentLength > 1<<20 {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	e, err := binding.ToEvent(req.Context(), cehttp.NewMessageFromHttpRequest(req))
	if err != nil || e.Validate() != nil || e.SpecVersion() != "1.0" {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	body, topic := e.Data(), strings.Trim(req.URL.Path, "/")
	trace, _ := e.Extensions()["traceparent"].(string)
	r.got[topic] = append(r.got[topic], stored{e.ID(), string(body), trace})
	w.WriteHeader(http.StatusNoContent)
}

// answers sets the handler of all further requests. With nil the receiver stores messages again.
func (r *receiver) answers(answer func(http.ResponseWriter, *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *receiver) stored(topic string) []stored {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got[topic])
}

func (r *receiver) freeze(string) (thaw func()) {
	frozen := make(chan struct{})
	r.answers(func(http.ResponseWriter, *http.Request) bool {
		<-frozen
		return false
	})
	return func() {
		close(frozen)
		r.answers(nil)
	}
}

func (r *receiver) url(topic string) string {
	return "http://" + r.addr + "/" + topic + "?secret=" + testSecret
}
