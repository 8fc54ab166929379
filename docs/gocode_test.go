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
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// packages has the import path of every package that code in the pages may use without an import.
var packages = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "http": "net/http", "log": "log", "os": "os", "sql": "database/sql", "time": "time",
	"mqnotify": module, "notify": module + "/notify", "producer": module + "/producer", "consumer": module + "/consumer", "guard": module + "/guard",
	"queue": module + "/queue", "ringbuffer": module + "/ringbuffer", "bridge": module + "/bridge", "capture": module + "/capture", "serve": module + "/serve",
	"tracing": module + "/tracing", "schema": module + "/sql",
}

const module = "github.com/mqnotify/mqnotify"

// usual begins every program. It declares the names that every piece of code may use, and run, which runs a piece. While the
// piece runs, run repeats the function meanwhile, which the page may give. If the piece calls a function of the page that calls
// end, that must have happened when the piece returns.
const usual = `
var (
	ctx, end  = context.WithCancel(context.Background())
	db, _     = notify.Open(os.Getenv("MQNOTIFY_DSN"))
	meanwhile = func() {}
)

func must(err error) {
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(piece func(), ends bool) {
	go func() {
		for pause := time.Tick(20 * time.Millisecond); ctx.Err() == nil; <-pause {
			meanwhile()
		}
	}()
	piece()
	if ends && ctx.Err() == nil {
		log.Fatal("the function that ends the piece was not called")
	}
}
`

// The Go code of the pages compiles, and go vet finds nothing. TestPages runs the code.
func TestGo(t *testing.T) {
	t.Parallel()
	for _, folder := range writeGo(t, t.TempDir()) {
		vet := exec.CommandContext(t.Context(), "go", "vet", "./...")
		vet.Dir = folder
		said, err := vet.CombinedOutput()
		require.NoError(t, err, "%s", said)
	}
}

// writeGo makes dir a module with a program for each page that has pieces of Go code, and a module for each whole program in a
// page. It returns the folders of the modules, dir first. A piece of code becomes the body of a function. It may use the
// declarations that the page gives, and gets the imports for the names of packages in it. The program's argument is the line of
// the piece that it runs.
func writeGo(t *testing.T, dir string) []string {
	t.Helper()
	makeModule(t, dir, "")
	folders := []string{dir}
	pieces := 0
	for _, page := range pages(t) {
		folder := filepath.Join(dir, programOf(page))
		var declarations, functions, choices string
		for _, b := range blocks(t, page) {
			switch {
			case b.language != "go" || b.notRun != "":
				continue
			case b.given:
				declarations += b.text + "\n"
				continue
			}
			pieces++
			if program(b.text) {
				alone := filepath.Join(folder, fmt.Sprintf("program%d", b.line))
				require.NoError(t, os.MkdirAll(alone, 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(alone, "main.go"), []byte(b.text), 0o600))
				makeModule(t, alone, b.text)
				folders = append(folders, alone)
				continue
			}
			functions += function(t, b)
			choices += fmt.Sprintf("\tcase \"%d\":\n\t\trun(line%[1]d, %v)\n", b.line, ends(t, declarations, b.text))
		}
		if choices != "" {
			first := usual
			if strings.Contains(functions, "mqnotify.") {
				first = strings.Replace(usual, "notify.Open", "mqnotify.Open", 1)
			}
			code := first + declarations + functions + "\nfunc main() {\n\tswitch os.Args[1] {\n" + choices + "\t}\n}\n"
			require.NoError(t, os.MkdirAll(folder, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(folder, "main.go"), source(t, code), 0o600))
		}
	}
	require.Greater(t, pieces, 4)
	return folders
}

// programOf returns the name of the program that runs a page's pieces of code.
func programOf(page string) string {
	return "page-" + strings.ToLower(strings.TrimSuffix(filepath.Base(page), ".md"))
}

// ends reports whether the code calls a function that the page gives and that calls end.
func ends(t *testing.T, declarations, code string) bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+declarations, parser.SkipObjectResolution)
	require.NoError(t, err, declarations)
	return slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
		f, is := d.(*ast.FuncDecl)
		return is && strings.Contains(code, f.Name.Name+"(") &&
			strings.Contains(("package p\n" + declarations)[f.Body.Pos()-1:f.Body.End()-1], "end()")
	})
}

// program reports whether the text is a whole program and not a piece of one.
func program(text string) bool { return strings.HasPrefix(text, "package main\n") }

// driver finds the module in adapters/ that a program imports.
var driver = regexp.MustCompile(`"` + regexp.QuoteMeta(module) + `/(adapters/\w+)"`)

// makeModule makes the folder a module that requires the modules of this repository that the program imports, as `go get` would
// do.
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

// function returns the code as a function that uses all its variables, and stops when one of its statements assigns an error to
// err.
func function(t *testing.T, b block) string {
	t.Helper()
	const before = "package p; func _() {"
	file, err := parser.ParseFile(token.NewFileSet(), "", before+b.text+"\n}", parser.SkipObjectResolution)
	require.NoError(t, err, b.at())
	names := map[string]bool{}
	body, done := "", 0
	for _, statement := range file.Decls[0].(*ast.FuncDecl).Body.List {
		assign, is := statement.(*ast.AssignStmt)
		if !is {
			continue
		}
		for _, left := range assign.Lhs {
			name := left.(*ast.Ident).Name
			names[name] = names[name] || assign.Tok == token.DEFINE
			if name == "err" {
				end := int(assign.End()) - 1 - len(before)
				body += b.text[done:end] + "; must(err)"
				done = end
			}
		}
	}
	body += b.text[done:]
	defined := ""
	for _, name := range slices.Sorted(maps.Keys(names)) {
		defined += "\t_ = " + name + "\n"
	}
	body = strings.ReplaceAll(body, strconv.Quote(dsn), `os.Getenv("MQNOTIFY_DSN")`)
	return fmt.Sprintf("\nfunc line%d() {\n//line %s\n%s\n%s}\n", b.line, b.at(), body, defined)
}

// source returns a program: the code with the imports that it needs.
func source(t *testing.T, code string) []byte {
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
	all.WriteString("package main\n\n")
	for _, used := range slices.Sorted(maps.Keys(imports)) {
		fmt.Fprintf(&all, "import %s %q\n", used, packages[used])
	}
	return []byte(all.String() + code)
}
