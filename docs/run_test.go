package docs

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/child"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The names that the pages use. The test replaces them with those of its own servers.
const (
	dsn        = "mysql://user:password@127.0.0.1:3306/shop"
	dsnCompose = "mysql://mq:mq@127.0.0.1:33084/shop"
	account    = "'app'@'10.0.%'"
	served     = "127.0.0.1:8080" // where `mqnotify serve` listens
	servedTLS  = ":8443"
)

// Every page can be typed from top to bottom, in an empty folder, with mqnotify on the PATH and an empty database: every
// command succeeds, or keeps running if it should, and prints what the page shows.
func TestPages(t *testing.T) {
	if signal.Ignored(os.Interrupt) { // a test in the background ignores Ctrl-C, and its commands would do so as well
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	for _, tool := range []string{"bash", "curl", "jq", "openssl"} {
		_, err := exec.LookPath(tool)
		require.NoError(t, err, "the pages use %s: install it", tool)
	}
	bin, err := build()
	require.NoError(t, err)
	environ := []string{"PATH=" + bin + ":" + buildGo(t) + ":" + os.Getenv("PATH")}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY"} { // by default they depend on HOME, and the commands have another HOME
		value, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		require.NoError(t, err)
		environ = append(environ, name+"="+strings.TrimSpace(string(value)))
	}
	for _, page := range pages(t) {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			all := blocks(t, page)
			mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
				run(t, s, environ, all)
			})
		})
	}
}

// buildGo builds the pages' pieces of Go code, and returns the folder of their programs.
func buildGo(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	writeGo(t, dir)
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", dir+"/bin/", "./...")
	build.Dir = dir
	said, err := build.CombinedOutput()
	require.NoError(t, err, "%s", said)
	return dir + "/bin"
}

func run(t *testing.T, s *mysqltest.Server, environ []string, all []block) {
	t.Helper()
	config := s.Database(t)
	config.MultiStatements = true
	db := open(t, config)
	replace := replacer(t, s, config, all)
	dir := t.TempDir()
	// curl shows no progress meter, as on a terminal.
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".curlrc"), []byte("silent\nshow-error\n"), 0o600))
	reader := &terminal{dir: dir, environ: append(slices.Clone(environ), "HOME="+dir, "MQNOTIFY_DSN="+url(config))}
	defer reader.close(t)
	for _, b := range all {
		switch {
		case b.notRun != "":
		case b.language == "go" && program(b.text):
			makeModule(t, reader.dir, b.text)
			require.NoError(t, os.WriteFile(filepath.Join(reader.dir, "main.go"), []byte(replace(b.text)), 0o600))
		case b.language == "go" && !b.given:
			reader.block(t, block{page: b.page, line: b.line, language: "sh", text: fmt.Sprintf("%s %d", programOf(b.page), b.line)}, replace)
		case b.output:
			reader.shows(t, b)
		case b.language == "sh":
			reader.block(t, b, replace)
		case b.language == "sql":
			_, err := db.ExecContext(t.Context(), replace(b.text))
			require.NoError(t, err, b.at())
		}
	}
}

// replacer returns a function that replaces the names in a page: the database, an account, brokers, and the ports on which
// mqnotify serves.
func replacer(t *testing.T, s *mysqltest.Server, config *mysql.Config, all []block) func(string) string {
	t.Helper()
	pairs := []string{dsn, url(config), dsnCompose, url(config)}
	named := func(what string) bool {
		return slices.ContainsFunc(all, func(b block) bool {
			return (b.language == "sh" || b.language == "sql") && b.notRun == "" && strings.Contains(b.text, what)
		})
	}
	if named(account) {
		pairs = append(pairs, account, "'"+s.User(t, config).User+"'@'%'", " shop.", " "+config.DBName+".")
	}
	for name, start := range map[string]func(testing.TB) *brokertest.Broker{
		"nats://127.0.0.1:4222":  func(tb testing.TB) *brokertest.Broker { return brokertest.NATS(tb) },
		"redis://127.0.0.1:6379": func(tb testing.TB) *brokertest.Broker { return brokertest.Redis(tb) },
		"mqtt://127.0.0.1:1883":  func(tb testing.TB) *brokertest.Broker { return brokertest.Mosquitto(tb) },
	} {
		if named(name) {
			broker := start(t)
			scheme, _, _ := strings.Cut(name, ":")
			pairs = append(pairs, name, fmt.Sprintf("%s://%s:%s@%s", scheme, brokertest.User, brokertest.Password, broker.Addr()))
		}
	}
	if named("mqnotify serve ") {
		port, tls := freePort(t), freePort(t)
		pairs = append(pairs, served, "127.0.0.1:"+port, servedTLS, ":"+tls)
	}
	replacer := strings.NewReplacer(pairs...)
	return func(text string) string {
		if !strings.Contains(text, "--listen") {
			text = strings.Replace(text, "mqnotify serve ", "mqnotify serve --listen "+served+" ", 1)
		}
		return replacer.Replace(text)
	}
}

// url returns the DSN in the form that the pages use.
func url(config *mysql.Config) string {
	return fmt.Sprintf("mysql://%s:%s@%s/%s", config.User, config.Passwd, config.Addr, config.DBName)
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := child.FreePort()
	require.NoError(t, err)
	return strconv.Itoa(port)
}

func open(t *testing.T, config *mysql.Config) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
