package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/postgrestest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// field are the peers of a run, each with a database and accounts of its own, on servers
// that all write a commit to the log at once and flush it later.
type field struct {
	peers    []*peer
	versions []string
	notes    []string
	closing  []func() error
}

func (f *field) close() error {
	var errs []error
	for _, end := range slices.Backward(f.closing) {
		errs = append(errs, end())
	}
	return errors.Join(append(errs, mysqltest.Close())...)
}

// contender is a peer on MySQL before its database is there.
type contender struct {
	peer
	grants func(publisher, consumer string) []string
	tables func(ctx context.Context, root *sql.DB) error
	open   func(ctx context.Context, publisher, consumer *mysql.Config) (topic, error)
}

func insertSelect(publisher, consumer string) []string {
	return []string{"INSERT ON orders TO " + publisher, "SELECT ON orders TO " + consumer}
}

func mqnotifyGrants(mariadb bool) func(publisher, consumer string) []string {
	return func(publisher, consumer string) []string {
		grants := append(insertSelect(publisher, consumer),
			"SELECT, INSERT, UPDATE ON "+schema.OffsetTable+" TO "+consumer,
			"SELECT, INSERT, UPDATE ON "+schema.DeadLetterTable+" TO "+consumer)
		if mariadb {
			return append(grants, "PROCESS ON *.* TO "+consumer)
		}
		return append(grants, "SELECT ON performance_schema.metadata_locks TO "+consumer, "SELECT ON performance_schema.threads TO "+consumer)
	}
}

func watermillGrants(publisher, consumer string) []string {
	return []string{
		"INSERT ON watermill_orders TO " + publisher, "SELECT ON watermill_orders TO " + consumer,
		"SELECT, INSERT, UPDATE ON watermill_offsets_orders TO " + consumer,
	}
}

// contenders are those on one server.
func contenders(mariadb bool) []contender {
	all := []contender{
		mqnotify(mariadb, "mqnotify, wake trigger, a plain INSERT", true, true),
		mqnotify(mariadb, "mqnotify, wake trigger, our producer", true, false),
		mqnotify(mariadb, "mqnotify, mqnotify_wake, our producer", false, false),
	}
	for _, polls := range []struct {
		name      string
		set, each time.Duration
	}{
		{"watermill-sql, default (polls each 1s)", 0, time.Second},
		{"watermill-sql, polls each 10ms", 10 * time.Millisecond, 10 * time.Millisecond},
	} {
		all = append(all, contender{
			peer:   peer{name: polls.name, each: polls.each, keeps: true},
			grants: watermillGrants,
			tables: func(_ context.Context, root *sql.DB) error { return (&watermills{}).initialize(root) },
			open: func(_ context.Context, publisher, consumer *mysql.Config) (topic, error) {
				return openWatermill(publisher, consumer, polls.set)
			},
		})
	}
	for _, each := range []time.Duration{100 * time.Millisecond, time.Second} {
		all = append(all, contender{
			peer:   peer{name: fmt.Sprintf("plain polling each %v", each), each: each, keeps: true},
			grants: insertSelect,
			tables: func(ctx context.Context, root *sql.DB) error {
				_, err := root.ExecContext(ctx, polledTable)
				return err
			},
			open: func(_ context.Context, publisher, consumer *mysql.Config) (topic, error) {
				return openPolling(publisher, consumer, each)
			},
		})
	}
	return all
}

// mqnotify returns a contender that has a wake trigger or none, and whose publisher is our producer or plain INSERTs.
func mqnotify(mariadb bool, name string, trigger, plain bool) contender {
	return contender{
		peer: peer{name: name, ours: true, keeps: true},
		grants: func(publisher, consumer string) []string {
			accounts := []string{consumer, publisher}
			if plain {
				accounts = accounts[:1]
			}
			grants := mqnotifyGrants(mariadb)(publisher, consumer)
			for _, account := range accounts {
				grants = append(grants, "EXECUTE ON PROCEDURE "+waiting.WakeRoutine+" TO "+account, "EXECUTE ON PROCEDURE "+waiting.TablesRoutine+" TO "+account)
			}
			return grants
		},
		tables: func(ctx context.Context, root *sql.DB) error { return wakeTables(ctx, root, trigger) },
		open: func(_ context.Context, publisher, consumes *mysql.Config) (topic, error) {
			mine, err := openOurs(publisher, consumes)
			if err != nil || !plain {
				return mine, err
			}
			inserts, err := openPolling(publisher, consumes, 0)
			return &plainInserts{mine, inserts}, err
		},
	}
}

// wakeTables makes a topic and the routines of wake triggers, and the topic's wake trigger if it is to have one.
func wakeTables(ctx context.Context, root *sql.DB, triggered bool) error {
	var database string
	if err := root.QueryRowContext(ctx, "SELECT DATABASE()").Scan(&database); err != nil {
		return err
	}
	if err := schema.Init(ctx, root, "orders"); err != nil {
		return err
	}
	var statements []string
	for _, r := range waiting.Routines(database) {
		statements = append(statements, r.Statement)
	}
	if triggered {
		trigger, err := waiting.Trigger(database, "orders", "insert")
		if err != nil {
			return err
		}
		statements = append(statements, trigger)
	}
	for _, statement := range statements {
		if _, err := root.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// plainInserts is mqnotify's consumer of rows that another program inserts.
type plainInserts struct {
	topic
	plain topic
}

func (p *plainInserts) Publish(ctx context.Context, payloads ...[]byte) error {
	return p.plain.Publish(ctx, payloads...)
}

func (p *plainInserts) Begin(ctx context.Context, payload []byte) (func() error, error) {
	return p.plain.Begin(ctx, payload)
}

func (p *plainInserts) Close() error { return errors.Join(p.topic.Close(), p.plain.Close()) }

// openField starts the servers and opens the peers that are wanted.
func openField(ctx context.Context, server string, wanted func(*peer) bool) (f *field, err error) {
	f = &field{}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	servers, err := mysqltest.Servers()
	if err != nil {
		return f, err
	}
	i := slices.IndexFunc(servers, func(s *mysqltest.Server) bool { return s.Name() == server })
	if i < 0 {
		return f, fmt.Errorf("no server %q is there", server)
	}
	of := slices.DeleteFunc(contenders(servers[i].IsMariaDB()), func(c contender) bool { return !wanted(&c.peer) })
	if len(of) > 0 {
		if err := f.openMySQL(ctx, servers[i], of); err != nil {
			return f, err
		}
	}
	slices.SortStableFunc(f.peers, func(a, b *peer) int { return order(a) - order(b) })
	return f, f.openPostgres(ctx, wanted)
}

// order has ours first.
func order(p *peer) int {
	if p.ours {
		return 0
	}
	return 1
}

func (f *field) openMySQL(ctx context.Context, server *mysqltest.Server, of []contender) error {
	config, err := server.Launch()
	if err != nil {
		return err
	}
	for i, c := range of {
		config.DBName = fmt.Sprintf("peer%d", i)
		if err := f.enter(ctx, config, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	root, err := pool(config)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	var version string
	err = root.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
	name := "MySQL "
	if server.IsMariaDB() {
		name = "MariaDB "
	}
	f.versions = append(f.versions, name+version)
	return err
}

// enter makes a contender's database and accounts, with the privileges that it needs alone.
func (f *field) enter(ctx context.Context, config *mysql.Config, c contender) error {
	server := config.Clone()
	server.DBName = ""
	admin, err := pool(server)
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	accounts := map[string]*mysql.Config{"publisher": config.Clone(), "consumer": config.Clone()}
	statements := []string{"CREATE DATABASE " + config.DBName}
	for role, account := range accounts {
		account.User = config.DBName + role
		statements = append(statements, "CREATE USER "+account.User)
	}
	for _, statement := range statements {
		if _, err := admin.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	root, err := pool(config)
	if err != nil {
		return err
	}
	f.closing = append(f.closing, root.Close)
	if err := c.tables(ctx, root); err != nil {
		return err
	}
	for _, grant := range c.grants(accounts["publisher"].User, accounts["consumer"].User) {
		if _, err := root.ExecContext(ctx, "GRANT "+grant); err != nil {
			return fmt.Errorf("GRANT %s: %w", grant, err)
		}
	}
	p := c.peer
	p.questions = func(ctx context.Context) (n float64, err error) {
		err = root.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(new(string), &n)
		return n, err
	}
	p.open = func(ctx context.Context) (topic, error) {
		return c.open(ctx, accounts["publisher"], accounts["consumer"])
	}
	f.peers = append(f.peers, &p)
	return nil
}

// openPostgres adds the two ways of LISTEN and NOTIFY, if there is a PostgreSQL.
func (f *field) openPostgres(ctx context.Context, wanted func(*peer) bool) error {
	ways := []*peer{
		{name: "PostgreSQL LISTEN/NOTIFY, then a read", keeps: true},
		{name: "PostgreSQL NOTIFY with the message"},
	}
	ways = slices.DeleteFunc(ways, func(p *peer) bool { return !wanted(p) })
	if len(ways) == 0 {
		return nil
	}
	url, stop, err := postgrestest.Start(ctx, "-c", "shared_preload_libraries=pg_stat_statements") // which counts
	if errors.Is(err, postgrestest.ErrNone) {
		f.notes = append(f.notes, "PostgreSQL was not installed, and is missing.")
		return nil
	}
	if err != nil {
		return err
	}
	f.closing = append(f.closing, stop)
	for i, p := range ways {
		if err := f.enterPostgres(ctx, url, i, p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func (f *field) enterPostgres(ctx context.Context, url string, i int, p *peer) error {
	admin, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer admin.Close()
	database := fmt.Sprintf("peer%d", i)
	at := func(user string) string {
		return strings.TrimSuffix(strings.Replace(url, "postgres@", user+"@", 1), "postgres") + database
	}
	statements := []string{"CREATE DATABASE " + database}
	if i == 0 {
		statements = append(statements, "CREATE ROLE publisher LOGIN", "CREATE ROLE consumer LOGIN")
		var version string
		if err := admin.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
			return err
		}
		f.versions = append(f.versions, "PostgreSQL "+version)
	}
	for _, statement := range statements {
		if _, err := admin.Exec(ctx, statement); err != nil {
			return err
		}
	}
	root, err := pgxpool.New(ctx, at("postgres"))
	if err != nil {
		return err
	}
	f.closing = append(f.closing, func() error { root.Close(); return nil })
	for _, statement := range postgresTables(!p.keeps) {
		if _, err := root.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	p.questions = postgresStatements(root)
	p.open = func(ctx context.Context) (topic, error) {
		return openPostgres(ctx, at("publisher"), at("consumer"), !p.keeps)
	}
	f.peers = append(f.peers, p)
	return nil
}
