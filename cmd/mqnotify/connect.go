package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/dsn"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/metrics"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

const envDSN = "MQNOTIFY_DSN"

// dialPatience limits the time to connect when the DSN has no timeout=. The system's own limit is minutes.
const dialPatience = 10 * time.Second

var errNoServer = errors.New("no server is named: give --dsn mysql://user:password@host:3306/database, set " +
	envDSN + " (a command that mqnotify runs has it only with --inherit-dsn), give --defaults-file, or write a ~/.my.cnf")

var errNoDatabase = errors.New("no database is named: give --database, or end the DSN with /DATABASE, " +
	"or put database=... into the defaults file")

// connection has the flags that select the server and the database.
type connection struct {
	dsn, defaultsFile, database string
	tls                         string
	wait                        time.Duration
}

func (c *connection) register(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&c.dsn, "dsn", "", "server and database; if it has a password, set "+envDSN+" instead")
	flags.StringVar(&c.defaultsFile, "defaults-file", "", "a my.cnf to connect with; default ~/.my.cnf")
	flags.StringVar(&c.database, "database", "", "the database, instead of the DSN's or the file's")
	flags.StringVar(&c.tls, "tls", "", "how to verify the server: true, ca:/path.pem or sha256:FINGERPRINT;\ninstead of the DSN's tls= or the file's ssl-mode")
	flags.DurationVar(&c.wait, "wait", 0, "how long to wait for a server that does not answer yet; without =DURATION forever")
	flags.Lookup("wait").NoOptDefVal = (365 * 24 * time.Hour).String()
	completeFiles(root, "defaults-file")
}

// config returns the driver's configuration for the server that the user named. Its DBName may be empty.
func (a *app) config() (*mysql.Config, error) {
	config, err := a.findConfig()
	if err != nil {
		return nil, err
	}
	if a.connection.database != "" {
		if err := ident.Check(a.connection.database); err != nil {
			return nil, usagef("--database: %w", err)
		}
		config.DBName = a.connection.database
	}
	if a.connection.tls != "" {
		if err := dsn.SetTLS(config, a.connection.tls); err != nil {
			return nil, usagef("--tls: %w", err)
		}
	}
	if config.Timeout == 0 {
		config.Timeout = dialPatience
	}
	config.Logger = driverLog{a.log}
	if config.Passwd != "" {
		a.stderr.hide(":"+config.Passwd+"@", ":***@")
	}
	if why := dsn.Unverified(config); why != "" && !a.warned {
		a.warned = true
		a.log.WarnContext(context.Background(), "another server could take this one's place and get the password: "+why, "remedy", "--tls, or tls= in the DSN, with true, ca:/path.pem or sha256:FINGERPRINT")
	}
	return config, nil
}

func (a *app) findConfig() (*mysql.Config, error) {
	c := a.connection
	if c.dsn != "" && c.defaultsFile != "" {
		return nil, usagef("--dsn and --defaults-file: give one of them")
	}
	if c.defaultsFile != "" {
		return dsn.FromDefaultsFile(c.defaultsFile)
	}
	name := c.dsn
	if name == "" {
		name = a.getenv(envDSN)
	}
	if name != "" {
		if strings.Contains(name, ":") { // a DSN without a colon has no password
			a.stderr.hide(name, dsn.Redact(name))
		}
		return dsn.Parse(name)
	}
	if home := a.getenv("HOME"); home != "" {
		config, err := dsn.FromDefaultsFile(filepath.Join(home, ".my.cnf"))
		if !errors.Is(err, fs.ErrNotExist) {
			return config, err
		}
	}
	return nil, errNoServer
}

// databaseConfig is config for a command that needs a database.
func (a *app) databaseConfig() (*mysql.Config, error) {
	config, err := a.config()
	if err == nil && config.DBName == "" {
		return nil, errNoDatabase
	}
	return config, err
}

// open returns a pool for the database without connecting. The caller closes it.
func (a *app) open() (*notify.DB, error) { return a.openWith(nil) }

// openWith is open with a function that dials; nil is the driver's own.
func (a *app) openWith(dial dialer) (*notify.DB, error) {
	config, err := a.databaseConfig()
	if err != nil {
		return nil, err
	}
	config.DialFunc = dial
	if a.metrics != "" {
		a.commands = metrics.CountCommands(config)
	}
	db, err := notify.OpenConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return db, nil
}

// awaitServer waits until the server answers, even if it refuses the client or the client refuses it. It fails after --wait.
func (a *app) awaitServer(parent context.Context) error {
	switch {
	case a.connection.wait < 0:
		return usagef("--wait=%v: not negative", a.connection.wait)
	case a.connection.wait == 0:
		return nil
	}
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	core.IgnoreVersion(db) // the command itself reports a wrong version
	ctx, cancel := context.WithTimeoutCause(parent, a.connection.wait, fmt.Errorf("no answer within --wait=%v", a.connection.wait))
	defer cancel()
	waits := notify.Exponential(100*time.Millisecond, 2*time.Second)
	var last error
	for said := false; ; said = true {
		err := db.Pool().PingContext(ctx)
		var failed *net.OpError
		refused := errors.As(err, &failed) && failed.Op == "remote error" // the server's TLS refuses the client
		if parent.Err() != nil || refused || !server.ConnectionLost(err) && !server.Busy(err) {
			return nil // the server answered; the command itself reports a refusal, by the server or by the check of its certificate
		}
		if ctx.Err() != nil {
			return fmt.Errorf("connect: %w: %w", context.Cause(ctx), cmp.Or(last, err))
		}
		last = err
		if !said {
			a.log.InfoContext(ctx, "waiting for the server", "error", err)
		}
		select {
		case <-time.After(waits.NextBackOff()):
		case <-ctx.Done():
		}
	}
}

// closeDB closes the pool. At the end of a command its error has no remedy.
func closeDB(db *notify.DB) { _ = db.Close() }
