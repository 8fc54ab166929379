package engine

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	sqle "github.com/dolthub/go-mysql-server"
	"github.com/dolthub/go-mysql-server/memory"
	"github.com/dolthub/go-mysql-server/server"
	enginesql "github.com/dolthub/go-mysql-server/sql"
	"github.com/dolthub/go-mysql-server/sql/analyzer"
	"github.com/dolthub/go-mysql-server/sql/types"
	vitess "github.com/dolthub/vitess/go/mysql"
	"github.com/go-sql-driver/mysql"
	"github.com/sirupsen/logrus"
)

const (
	database = "demo"
	user     = "demo"
	host     = "127.0.0.1"
)

// Engine is a running engine. Safe for concurrent use.
type Engine struct {
	config   *mysql.Config
	engine   *sqle.Engine
	server   *server.Server
	listener *listener
	locks    *locks
	stop     context.CancelFunc // ends all running statements
	served   chan struct{}      // closed when the server accepts no connection any more
	closing  sync.Once
}

// Start starts an engine on a free port of 127.0.0.1, with an empty database named demo, and returns when it answers. ctx limits only the
// start: the engine runs until Close. Its account has a random password, because the engine can read files for every client that may
// connect.
//
// The engine logs to logrus's process-wide logger, which Start silences, and has process-wide variables, some of which Start corrects.
func Start(ctx context.Context) (*Engine, error) {
	logrus.SetOutput(io.Discard)
	correctVariables()

	listener, err := listen(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("the demo's engine: listen: %w", err)
	}
	config := mysql.NewConfig()
	config.Net, config.Addr = "tcp", listener.Addr().String()
	config.User, config.Passwd, config.DBName = user, rand.Text(), database

	life, stop := context.WithCancel(context.Background())
	e := &Engine{config: config, listener: listener, locks: newLocks(), stop: stop, served: make(chan struct{})}
	if err := e.serve(life); err != nil {
		stop()
		return nil, errors.Join(fmt.Errorf("the demo's engine: serve: %w", err), listener.Close())
	}
	if err := e.ping(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("the demo's engine: first connection: %w", err), e.Close())
	}
	return e, nil
}

// serve starts the server; its statements end with life.
func (e *Engine) serve(life context.Context) error {
	db := memory.NewDatabase(database)
	db.EnablePrimaryKeyIndexes() // without it WHERE id > ? reads the whole table
	tables := memory.NewDBProvider(db)

	e.engine = sqle.New(newAnalyzer(provider{tables, functions(e.locks)}), nil)
	accounts := e.engine.Analyzer.Catalog.MySQLDb
	editor := accounts.Editor()
	accounts.AddSuperUser(editor, user, host, e.config.Passwd)
	editor.Close()

	var err error
	e.server, err = server.NewServer(server.Config{
		Listener: e.listener,
		Options: []server.Option{func(en *sqle.Engine, sm *server.SessionManager, h vitess.Handler) (*sqle.Engine, *server.SessionManager, vitess.Handler) {
			return en, sm, newHandler(func() context.Context { return life }, h.(*server.Handler), sm, e.locks, e.listener)
		}},
	}, e.engine, enginesql.NewContext, memory.NewSessionBuilder(tables), nil)
	if err != nil {
		return err
	}
	go func() {
		defer close(e.served)
		_ = e.server.Start() // returns only the error of the closed listener
	}()
	return nil
}

func (e *Engine) ping(ctx context.Context) error {
	connector, err := mysql.NewConnector(e.Config())
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	return errors.Join(db.PingContext(ctx), db.Close())
}

// Config returns a copy of the configuration for connections, with the password.
func (e *Engine) Config() *mysql.Config { return e.config.Clone() }

// Close ends all statements and connections and drops all data. It returns when everything has stopped, and may be called twice.
func (e *Engine) Close() error {
	var err error
	e.closing.Do(func() {
		e.stop()
		err = e.server.Close()
		<-e.served
		e.listener.closeConns()
		// This stops the engine's background threads. Its error is always that their context was cancelled.
		_ = e.engine.Close()
	})
	return err
}

// provider adds functions to the engine's databases. They take precedence over the engine's own.
type provider struct {
	*memory.DbProvider
	functions map[string]enginesql.Function
}

func (p provider) Function(_ *enginesql.Context, name string) (enginesql.Function, bool) {
	f, ok := p.functions[name]
	return f, ok
}

// newAnalyzer returns the engine's analyzer without the rule that turns SELECT MAX(id) into ORDER BY id DESC LIMIT 1. With the rule an
// empty table has no result row, while MySQL returns NULL.
func newAnalyzer(p enginesql.DatabaseProvider) *analyzer.Analyzer {
	a := analyzer.NewDefaultWithVersion(p)
	for _, batch := range a.Batches {
		// Change a copy, because the slices of rules belong to the package.
		batch.Rules = slices.DeleteFunc(slices.Clone(batch.Rules), func(r analyzer.Rule) bool {
			return r.Id.String() == "replaceAgg"
		})
	}
	return a
}

// correctVariables declares system variables whose values or scopes in the engine differ from MySQL's, or would mislead.
var correctVariables = sync.OnceFunc(func() {
	enginesql.SystemVariables.AddSystemVariables([]enginesql.SystemVariable{
		&enginesql.MysqlSystemVariable{ // in the engine it is only global, and always 1
			Name: "innodb_lock_wait_timeout", Dynamic: true,
			Scope:   enginesql.GetMysqlScope(enginesql.SystemVariableScope_Both),
			Type:    types.NewSystemIntType("innodb_lock_wait_timeout", 1, 1073741824, false),
			Default: int64(50),
		},
		&enginesql.MysqlSystemVariable{
			Name:    "version_comment",
			Scope:   enginesql.GetMysqlScope(enginesql.SystemVariableScope_Global),
			Type:    types.NewSystemStringType("version_comment"),
			Default: "mqnotify's demo, go-mysql-server",
		},
	})
})
