package doctor

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/server"
)

// connection connects. Every other check uses its session.
func connection(ctx context.Context, e *exam) ([]Result, error) {
	start := time.Now()
	session, err := e.open(ctx)
	if err != nil {
		return []Result{e.unreachable(err)}, errEnough
	}
	e.session, e.caps = session, session.Capabilities()
	took := time.Since(start)
	// The server shows the start of transactions in its system time zone, whatever the session's is. SYSTEM needs no time zone tables.
	if err := e.exec(ctx, "SET SESSION time_zone = 'SYSTEM'"); err != nil {
		return nil, err
	}
	var at struct {
		Account string `db:"account"`
		Host    string `db:"host"`
		Port    int    `db:"port"`
	}
	if err := e.get(ctx, &at, "SELECT CURRENT_USER() AS account, @@hostname AS host, @@port AS port"); err != nil {
		return nil, err
	}
	results := []Result{ok("connected to database %s on %s as %s, in %v", ident.Quote(e.db.Name()),
		net.JoinHostPort(at.Host, strconv.Itoa(at.Port)), at.Account, took.Round(100*time.Microsecond))}
	if why := e.options.Unverified; why != "" {
		results = append(results, warning("verify the server with --tls, or tls= in the DSN: true, ca:/path.pem or sha256:FINGERPRINT",
			"another server could take this one's place and get the password: %s", why))
	}
	return results, nil
}

// unreachable returns the problem of a failed connection.
func (e *exam) unreachable(err error) Result {
	var network *net.OpError
	switch {
	case server.Number(err) != 0:
		return problem(remedy(err), "the server refuses the connection: %s", plain(err))
	case errors.As(err, &network) && network.Op == "dial":
		return problem("check that the server runs there, and that this machine may reach it; --dsn, MQNOTIFY_DSN or a my.cnf has its address",
			"no connection: %s", plain(err))
	case errors.Is(err, context.DeadlineExceeded):
		return problem("check that a firewall lets this machine reach it, that it is a MySQL or MariaDB server, and that it is not overloaded; --timeout changes the limit",
			"no answer within %v", e.options.Timeout)
	}
	return problem("check that this is the port of a MySQL or MariaDB server, and whether it requires TLS (tls=true)",
		"no connection: %s", plain(err))
}
