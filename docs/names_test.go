package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// testFunctions returns the names of all tests, benchmarks and Examples, by their folder relative to the root.
var testFunctions = sync.OnceValues(func() (map[string][]string, error) {
	all := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, declaration := range file.Decls {
			if f, is := declaration.(*ast.FuncDecl); is && f.Recv == nil && testName.MatchString(f.Name.Name) {
				all[dir] = append(all[dir], f.Name.Name)
			}
		}
		return err
	})
	return all, err
})

var testName = regexp.MustCompile(`^(Test|Benchmark|Example)[A-Z_]`)

// exists checks that `go test` with these arguments finds a test or benchmark. It does not run it, because benchmarks take long
// and ./test runs the tests.
func exists(t *testing.T, at string, args []string) {
	t.Helper()
	functions, err := testFunctions()
	require.NoError(t, err)
	dir, patterns := ".", []string(nil)
	for i, arg := range args {
		switch {
		case arg == "-C":
			dir = filepath.Join(dir, args[i+1])
		case strings.HasPrefix(arg, "./"):
			dir = filepath.Join(dir, arg)
		case (arg == "-run" || arg == "-bench") && args[i+1] != "-":
			patterns = append(patterns, args[i+1])
		}
	}
	require.NotEmpty(t, patterns, "%s: the command names no test", at)
	for _, pattern := range patterns {
		name, _, _ := strings.Cut(pattern, "/")
		require.True(t, slices.ContainsFunc(functions[dir], regexp.MustCompile(name).MatchString),
			"%s: %q is no test or benchmark of %s", at, name, dir)
	}
}

// Every test that a page names exists.
func TestNamesOfTests(t *testing.T) {
	functions, err := testFunctions()
	require.NoError(t, err)
	var all []string
	for _, names := range functions {
		all = append(all, names...)
	}
	named := 0
	quoted := regexp.MustCompile("`((?:Test|Benchmark)[A-Z]\\w*)(\\*?)(?:/\\w+)?`")
	for _, page := range append(pages(t), "ARCHITECTURE.md", "CHANGELOG.md") {
		text, err := os.ReadFile(filepath.Join(root, page))
		require.NoError(t, err)
		for _, match := range quoted.FindAllStringSubmatch(string(text), -1) {
			named++
			require.True(t, slices.ContainsFunc(all, func(name string) bool {
				return name == match[1] || match[2] != "" && strings.HasPrefix(name, match[1])
			}), "%s names %s, which is no test", page, match[1])
		}
	}
	require.Greater(t, named, 100)
}

// Every test that another one names for -short, when it skips itself, exists and runs in short.
func TestNamesOfShortTests(t *testing.T) {
	functions, err := testFunctions()
	require.NoError(t, err)
	bodies := map[string]string{}
	for folder := range functions {
		files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for body := range strings.SplitSeq(string(text), "\nfunc ") {
				name, _, _ := strings.Cut(body, "(")
				bodies[name] += body
			}
		}
	}
	skips := regexp.MustCompile(`NotShort\(\w+, "([^"]+)"\)`)
	named := 0
	for skipped, body := range bodies {
		if match := skips.FindStringSubmatch(body); match != nil {
			for _, name := range regexp.MustCompile(`Test\w+`).FindAllString(match[1], -1) {
				named++
				require.Contains(t, bodies, name, "%s names a test that does not exist", skipped)
				require.NotRegexp(t, skips, bodies[name], "%s names %s, which -short skips too", skipped, name)
			}
		}
	}
	require.Positive(t, named)
}
