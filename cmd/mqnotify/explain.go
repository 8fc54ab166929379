package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/bridge"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// explain adds a remedy to a command's error from the server or the network. It leaves errors that name their own remedy as they are.
func (a *app) explain(command *cobra.Command, err error) error {
	var dial *net.OpError
	var open *bridge.OpenError
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var remedy string
	switch {
	case errors.As(err, &open):
	case errors.Is(err, notify.ErrDenied), errors.Is(err, notify.ErrReadOnly), errors.Is(err, notify.ErrNoState), errors.Is(err, notify.ErrVersion):
	case errors.As(err, &dial) && dial.Op == "dial":
		remedy = "is the server running there? --dsn, " + envDSN + " or a my.cnf says where it is"
	case errors.As(err, &authority), errors.As(err, &name):
		remedy = "name its authority with --tls ca:/path.pem, or its own certificate with --tls sha256:FINGERPRINT"
	case server.Is(err, server.ErrAccessDenied):
		remedy = "check user and password"
	case server.Is(err, server.ErrBadDatabase):
		remedy = "make it with CREATE DATABASE, or name another with --database"
	case server.Is(err, server.ErrUnknownVariable):
		remedy = "check the DSN: the driver sets parameters that it does not know as variables of the server"
	case errors.Is(err, notify.ErrNoTable) && !server.Is(err, server.ErrNoSuchTable):
		if strings.Contains(command.Use, "TOPIC") && command.Name() != "init" { // init --trigger and the others are for a table that exists
			remedy = "`mqnotify init` makes a new topic"
		}
	case server.Is(err, server.ErrParse, server.ErrBadField) && !errors.Is(err, notify.ErrNotTopic):
		remedy = "check --where; if the error names a trigger, FLUSH TABLES repairs it (MariaDB, after a KILL)"
	case server.Is(err, server.ErrBinlogNeedsSuper):
		remedy = "have the server's administrator run this command, or set log_bin_trust_function_creators"
	case server.NoPrivilege(err):
		remedy = "`mqnotify grants` shows what the account needs"
	case server.ReadOnly(err):
		remedy = "connect to the primary"
	case server.Is(err, server.ErrTooManyConnections, server.ErrTooManyUserConnections):
		remedy = "try again later, or raise max_connections"
	case errors.Is(err, mysql.ErrInvalidConn):
		remedy = "the server closed the connection"
	}
	if remedy == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, remedy)
}
