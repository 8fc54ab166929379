// Package weight limits what a user of the library downloads and links to what the library needs.
package weight

import (
	"debug/buildinfo"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

const module = "github.com/mqnotify/mqnotify"

// The core is three packages, the internal packages that they need, and four other modules. A group needs a lease of guard if
// several servers take writes.
var (
	packages = []string{"consumer", "guard", "notify", "producer", "internal/core", "internal/dberror", "internal/deadletter", "internal/dsn", "internal/header", "internal/ident", "internal/lockname", "internal/name", "internal/position", "internal/schema", "internal/server", "internal/table", "internal/waiting"}
	modules  = []string{
		"filippo.io/edwards25519", "github.com/cenkalti/backoff/v4", "github.com/go-sql-driver/mysql", "github.com/jmoiron/sqlx",
	}
)

const program = `package main

import (
	_ "` + module + `/consumer"
	_ "` + module + `/notify"
	_ "` + module + `/producer"
)

func main() {}
`

// user is a module of a user that imports the core.
type user struct {
	t   *testing.T
	dir string
	env []string
}

func newUser(t *testing.T, env ...string) *user {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	u := &user{t: t, dir: t.TempDir(), env: append(os.Environ(), append([]string{"GOFLAGS=-mod=mod -modcacherw -buildvcs=false", "GOWORK=off"}, env...)...)}
	u.write("go.mod", "module example.com/user\n\ngo 1.25.0\n\nrequire "+module+" v0.0.0\n\nreplace "+module+" => "+root+"\n")
	u.write("main.go", program)
	return u
}

func (u *user) write(name, text string) {
	u.t.Helper()
	require.NoError(u.t, os.WriteFile(filepath.Join(u.dir, name), []byte(text), 0o600))
}

func (u *user) run(args ...string) string {
	u.t.Helper()
	command := exec.CommandContext(u.t.Context(), "go", args...)
	command.Dir, command.Env = u.dir, u.env
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	require.NoError(u.t, err, "go %s\n%s", strings.Join(args, " "), stderr.String())
	return strings.TrimSpace(string(out))
}

// linked builds the program and returns the modules in it.
func (u *user) linked() (names []string) {
	u.t.Helper()
	u.run("build", "-o", "user", ".")
	info, err := buildinfo.ReadFile(filepath.Join(u.dir, "user"))
	require.NoError(u.t, err)
	for _, dep := range info.Deps {
		if dep.Path != module {
			names = append(names, dep.Path)
		}
	}
	slices.Sort(names)
	return names
}

// A program that imports notify, producer and consumer links this module and four others, and none
// of the module's other packages: no broker, and no engine of the demo.
func TestLinked(t *testing.T) {
	mysqltest.Once(t)
	mysqltest.NotShort(t, "TestDownloaded")
	u := newUser(t)
	require.Equal(t, modules, u.linked())

	var ours []string
	for name := range strings.FieldsSeq(u.run("list", "-deps", ".")) {
		if name, ok := strings.CutPrefix(name, module+"/"); ok {
			ours = append(ours, name)
		}
	}
	require.ElementsMatch(t, packages, ours)
}

// The content of an empty module cache after `go mod tidy`, which also downloads what the tests of the three packages
// need, and after `go build` alone, which is what most builds do.
func TestDownloaded(t *testing.T) {
	if os.Getenv("MQNOTIFY_LONG") == "" {
		t.Skip("downloads; MQNOTIFY_LONG=1")
	}
	tidied := newUser(t, emptyCache(t))
	tidied.run("mod", "tidy")
	require.Equal(t, modules, tidied.linked())
	for _, name := range tidied.downloads("go mod tidy") {
		for _, part := range []string{"dolthub", "nats", "amqp", "franz", "redis", "paho", "cobra", "chromedp"} {
			require.NotContains(t, name, part)
		}
	}

	built := newUser(t, emptyCache(t))
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(tidied.dir, name))
		require.NoError(t, err)
		built.write(name, string(text))
	}
	require.Equal(t, modules, built.linked())
	require.ElementsMatch(t, modules, built.downloads("go build"))
}

// emptyCache returns a setting of the environment. The cache can be deleted at the end.
func emptyCache(t *testing.T) string {
	t.Helper()
	return "GOMODCACHE=" + filepath.Join(t.TempDir(), "modules")
}

// downloads returns the modules whose source is in the cache.
func (u *user) downloads(what string) (names []string) {
	u.t.Helper()
	cache := u.run("env", "GOMODCACHE")
	bytes := int64(0)
	downloaded := filepath.Join(cache, "cache", "download")
	require.NoError(u.t, filepath.WalkDir(downloaded, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".zip" {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		bytes += info.Size()
		name, err := filepath.Rel(downloaded, filepath.Dir(filepath.Dir(path)))
		names = append(names, filepath.ToSlash(name))
		return err
	}))
	u.t.Logf("%s: %d modules, %.1f MB compressed: %s", what, len(names), float64(bytes)/1e6, strings.Join(names, " "))
	return names
}
