package doctor

import (
	"context"
	"errors"
	"net"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/server"
)

// lost reports whether err means that the server does not answer any more.
func (e *exam) lost(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || server.ConnectionLost(err) ||
		err != nil && e.session != nil && e.session.Err() != nil
}

// unanswered returns the result of a check that got no answer.
func (e *exam) unanswered(err error) Result {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return problem("check the server and the network; --timeout changes the limit",
			"no answer within %v: the server hangs, or is very slow", e.options.Timeout)
	case e.lost(err):
		return problem("see the server's error log: it may have restarted, or the session was killed",
			"the connection was lost: %s", plain(err))
	}
	return warning(remedy(err), "not checked: %s", plain(err))
}

// remedies has remedies by the server's error number.
var remedies = map[uint16]string{
	server.ErrAccessDenied:           "check user and password, and from which hosts the account may connect",
	server.ErrDBAccessDenied:         "check the database's name, or have an administrator grant it: `mqnotify grants` prints the statements",
	server.ErrBadDatabase:            "make it with CREATE DATABASE, or name another with --database",
	server.ErrTooManyConnections:     "try again later, or raise max_connections",
	server.ErrTooManyUserConnections: "try again later, or raise the account's limit",
	server.ErrLockWaitTimeout:        "a statement locks the table, perhaps ALTER TABLE or LOCK TABLES: see SHOW PROCESSLIST",
}

const grantsRemedy = "`mqnotify grants` shows what an account needs"

func remedy(err error) string {
	if text, known := remedies[server.Number(err)]; known {
		return text
	}
	if server.NoPrivilege(err) {
		return grantsRemedy
	}
	return ""
}

// plain returns the text of the server's or the network's error, without the errors that wrap it.
func plain(err error) string {
	var said *mysql.MySQLError
	var network *net.OpError
	switch {
	case errors.As(err, &said):
		return said.Error()
	case errors.As(err, &network):
		return network.Error()
	}
	return err.Error()
}
