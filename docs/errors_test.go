package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page of errors names every exported error of the public packages, every exit code of the command and every remedy that it
// prints. It names no error that does not exist.
func TestErrors(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("reference", "errors.md"))
	require.NoError(t, err)
	page := string(text)

	named := map[string]bool{}
	for _, match := range regexp.MustCompile("`([a-z]+\\.(?:Err\\w+|\\w+Error))`").FindAllStringSubmatch(page, -1) {
		named[match[1]] = true
	}
	delete(named, "mysql.MySQLError") // the driver's
	require.Equal(t, exportedErrors(t), slices.Sorted(maps.Keys(named)))

	codes, remedies := commandErrors(t)
	for _, code := range codes {
		require.Contains(t, page, "\n| "+code+" |", "the exit code")
	}
	plain := strings.NewReplacer("`", "")
	for _, remedy := range remedies {
		require.Contains(t, plain.Replace(page), plain.Replace(remedy))
	}
}

// exportedErrors returns the errors of the packages that users import.
func exportedErrors(t *testing.T) (all []string) {
	t.Helper()
	folders := []string{".", "notify", "producer", "consumer", "guard", "queue", "ringbuffer", "bridge", "capture", "serve", "tracing", "adapters/watermill", "adapters/gocloud"}
	for _, folder := range folders {
		for _, file := range sources(t, folder) {
			for _, declaration := range file.Decls {
				general, is := declaration.(*ast.GenDecl)
				if !is {
					continue
				}
				for _, spec := range general.Specs {
					for _, name := range exportedNames(spec) {
						all = append(all, file.Name.Name+"."+name)
					}
				}
			}
		}
	}
	slices.Sort(all)
	require.Greater(t, len(all), 30)
	return all
}

// exportedNames returns the errors that a spec declares.
func exportedNames(spec ast.Spec) (all []string) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			if strings.HasPrefix(name.Name, "Err") {
				all = append(all, name.Name)
			}
		}
	case *ast.TypeSpec:
		if spec.Name.IsExported() && strings.HasSuffix(spec.Name.Name, "Error") {
			all = append(all, spec.Name.Name)
		}
	}
	return all
}

// commandErrors returns the command's exit codes, which are the constants exit..., and the remedies that explain adds to
// errors.
func commandErrors(t *testing.T) (codes, remedies []string) {
	t.Helper()
	for _, file := range sources(t, "cmd/mqnotify") {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if strings.HasPrefix(name.Name, "exit") && i < len(n.Values) {
						if value, is := n.Values[i].(*ast.BasicLit); is {
							codes = append(codes, value.Value)
						}
					}
				}
			case *ast.AssignStmt:
				if left, is := n.Lhs[0].(*ast.Ident); is && left.Name == "remedy" {
					remedies = append(remedies, literals(t, n.Rhs[0])...)
				}
			}
			return true
		})
	}
	require.Len(t, codes, 4)
	require.Greater(t, len(remedies), 10)
	return codes, remedies
}

// literals returns the strings in an expression.
func literals(t *testing.T, expression ast.Expr) (all []string) {
	t.Helper()
	ast.Inspect(expression, func(n ast.Node) bool {
		if literal, is := n.(*ast.BasicLit); is && literal.Kind == token.STRING {
			text, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			all = append(all, strings.TrimSpace(text))
		}
		return true
	})
	return all
}

// sources returns a folder's parsed Go files without its tests.
func sources(t *testing.T, folder string) (all []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		all = append(all, file)
	}
	require.NotEmpty(t, all)
	return all
}
