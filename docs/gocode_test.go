package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// packages are what code in the pages may use without an import, by their names.
var packages = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "http": "net/http", "log": "log", "os": "os", "sql": "database/sql", "time": "time",
	"notify": module + "/notify", "producer": module + "/producer", "consumer": module + "/consumer", "guard": module + "/guard",
	"queue": module + "/queue", "bridge": module + "/bridge", "capture": module + "/capture", "serve": module + "/serve",
	"tracing": module + "/tracing", "schema": module + "/sql",
}

const module = "github.com/mqnotify/mqnotify"

// usual is what every piece of code has at hand.
const usual = `
var (
	ctx context.Context
	db  *notify.DB
	tx  *sql.Tx
)
`

// Go code in the pages compiles, and vet finds nothing. What is no whole program is the
// body of a function, with the declarations that the page gives, and imports by the
// packages' names.
func TestGo(t *testing.T) {
	dir := t.TempDir()
	makeModule(t, dir, "")
	folders := []string{dir} // each a module
	pieces := 0
	for _, page := range pages(t) {
		name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(page), ".md"), "-", "")
		folder := filepath.Join(dir, name)
		var declarations string
		for _, b := range blocks(t, page) {
			switch {
			case b.language != "go" || b.notRun != "":
				continue
			case b.given:
				declarations += b.text
				continue
			}
			pieces++
			require.NoError(t, os.MkdirAll(folder, 0o700))
			file := filepath.Join(folder, fmt.Sprintf("line%d.go", b.line))
			if program(b.text) {
				alone := filepath.Join(folder, fmt.Sprintf("program%d", b.line))
				require.NoError(t, os.MkdirAll(alone, 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(alone, "main.go"), []byte(b.text), 0o600))
				makeModule(t, alone, b.text)
				folders = append(folders, alone)
				continue
			}
			body, defined := function(t, b)
			require.NoError(t, os.WriteFile(file, source(t, name, fmt.Sprintf("func line%d() {\n//line %s\n%s\n%s}\n", b.line, b.at(), body, defined)), 0o600))
		}
		if _, err := os.Stat(folder); err == nil {
			require.NoError(t, os.WriteFile(filepath.Join(folder, "given.go"), source(t, name, usual+declarations), 0o600))
		}
	}
	require.Greater(t, pieces, 4)
	for _, folder := range folders {
		vet := exec.CommandContext(t.Context(), "go", "vet", "./...")
		vet.Dir = folder
		said, err := vet.CombinedOutput()
		require.NoError(t, err, "%s", said)
	}
}

// program tells a whole program from a part of one.
func program(text string) bool { return strings.HasPrefix(text, "package main\n") }

// driver finds which of the modules in adapters/ a program imports.
var driver = regexp.MustCompile(`"` + regexp.QuoteMeta(module) + `/(adapters/\w+)"`)

// makeModule makes the folder a module that has what the program imports of this repository, as
// `go get` would.
func makeModule(t *testing.T, dir, program string) {
	t.Helper()
	from, replaced := ".", []string{"."}
	if match := driver.FindStringSubmatch(program); match != nil {
		from = match[1]
		replaced = append(replaced, from)
	}
	file, err := os.ReadFile(filepath.Join(root, from, "go.mod"))
	require.NoError(t, err)
	sums, err := os.ReadFile(filepath.Join(root, from, "go.sum"))
	require.NoError(t, err)
	text := "module example.com/shop\n"
	for line := range strings.Lines(string(file)) {
		if !strings.HasPrefix(line, "module ") && !strings.HasPrefix(line, "replace ") && !strings.Contains(line, module+" v") {
			text += line
		}
	}
	for _, folder := range replaced {
		here, err := filepath.Abs(filepath.Join(root, folder))
		require.NoError(t, err)
		name := path.Join(module, folder)
		text += fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => %s\n", name, name, here)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))
}

// function returns the code, and statements that use the variables that it does not.
func function(t *testing.T, b block) (body, defined string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p; func _() {\n//line "+b.at()+"\n"+b.text+"\n}", parser.SkipObjectResolution)
	require.NoError(t, err, b.at())
	names := map[string]bool{}
	for _, statement := range file.Decls[0].(*ast.FuncDecl).Body.List {
		if assign, is := statement.(*ast.AssignStmt); is && assign.Tok == token.DEFINE {
			for _, left := range assign.Lhs {
				names[left.(*ast.Ident).Name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		defined += "\t_ = " + name + "\n"
	}
	return b.text, defined
}

// source is a file with the imports that the code needs.
func source(t *testing.T, name, code string) []byte {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+code, parser.SkipObjectResolution)
	require.NoError(t, err, code)
	imports := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if selector, is := n.(*ast.SelectorExpr); is {
			if x, is := selector.X.(*ast.Ident); is && packages[x.Name] != "" {
				imports[x.Name] = true
			}
		}
		return true
	})
	var all strings.Builder
	fmt.Fprintf(&all, "package %s\n\n", name)
	for _, used := range slices.Sorted(maps.Keys(imports)) {
		fmt.Fprintf(&all, "import %s %q\n", used, packages[used])
	}
	return []byte(all.String() + code)
}
