//go:build !race

// Package documented checks that examples show every exported function.
package documented

import (
	"go/ast"
	"go/doc"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/packages"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

const module = "github.com/mqnotify/mqnotify/"

// rooms are the packages that users import, by the module's folder.
var rooms = map[string][]string{
	".":                  {"", "notify", "producer", "consumer", "guard", "queue", "ringbuffer", "bridge", "capture", "serve", "tracing"},
	"adapters/watermill": {"adapters/watermill"},
	"adapters/gocloud":   {"adapters/gocloud"},
}

// room is a package and the functions that its Examples call.
type room struct {
	types    *types.Package
	examples []*ast.FuncDecl // of the tests
	shown    map[string]bool // functions and methods ("Type.Method") that Examples call
	tested   map[string]bool // Examples that are run: by their output, or by a test
}

// Every exported function is called in an Example of its package. So is every method, except those
// that only return a value or implement an interface. Every
// Example is run.
func TestExamples(t *testing.T) {
	mysqltest.Once(t)
	mysqltest.NotShort(t, "TestReleased")
	all := map[string]*room{}
	var mu sync.Mutex
	var loading sync.WaitGroup
	for folder, rooms := range rooms {
		if testing.Short() && folder != "." {
			continue // each module is loaded by itself, the adapters' with all that they need
		}
		loading.Go(func() {
			found := load(t, folder, rooms)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(all, found)
		})
	}
	loading.Wait()
	require.False(t, t.Failed())
	for name, room := range all {
		require.NotNil(t, room.types, name)
		scope := room.types.Scope()
		for _, name := range scope.Names() {
			object := scope.Lookup(name)
			if !object.Exported() {
				continue
			}
			switch object := object.(type) {
			case *types.Func:
				assert.True(t, room.shown[name], "%s.%s: no Example calls it", room.types.Name(), name)
			case *types.TypeName:
				named, is := object.Type().(*types.Named)
				if object.IsAlias() || !is || types.IsInterface(named) {
					continue
				}
				for method := range named.Methods() {
					key := name + "." + method.Name()
					if method.Exported() && !accessor(method) && !internal(method) && !implements(room.types, named, method.Name()) {
						assert.True(t, room.shown[key], "%s.%s: no Example calls it", room.types.Name(), key)
					}
				}
			}
		}
		for _, example := range room.examples {
			assert.True(t, room.tested[example.Name.Name], "%s: %s is not run: give it an output, or call it in a test", name, example.Name.Name)
		}
	}
}

// load returns the packages of the module in the folder.
func load(t *testing.T, folder string, rooms []string) map[string]*room {
	t.Helper()
	patterns := make([]string, len(rooms))
	for i, name := range rooms {
		patterns[i] = strings.TrimSuffix(module+name, "/")
	}
	loaded, err := packages.Load(&packages.Config{
		Mode:  packages.NeedName | packages.NeedCompiledGoFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports,
		Tests: true,
		Dir:   filepath.Join("../..", folder),
	}, patterns...)
	if !assert.NoError(t, err) {
		return nil
	}
	found := map[string]*room{}
	for _, name := range rooms {
		found[name] = &room{shown: map[string]bool{}, tested: map[string]bool{}}
	}
	for _, p := range loaded {
		assert.Empty(t, p.Errors, p.ID)
		name := strings.TrimPrefix(strings.TrimSuffix(p.PkgPath, "_test")+"/", module)
		name = strings.TrimSuffix(name, "/")
		room := found[name]
		if room == nil { // the main package of a test
			continue
		}
		if p.ID == strings.TrimSuffix(module+name, "/") {
			room.types = p.Types
		}
		for i, file := range p.Syntax {
			if strings.HasSuffix(p.CompiledGoFiles[i], "_test.go") {
				room.read(p, file)
			}
		}
	}
	return found
}

// read records the functions that a test file's Examples call.
func (r *room) read(p *packages.Package, file *ast.File) {
	for _, example := range doc.Examples(file) {
		if example.Output != "" || example.EmptyOutput {
			r.tested["Example"+example.Name] = true
		}
	}
	for _, declared := range file.Decls {
		function, is := declared.(*ast.FuncDecl)
		if !is {
			continue
		}
		isExample := strings.HasPrefix(function.Name.Name, "Example")
		if isExample {
			r.examples = append(r.examples, function)
		}
		ast.Inspect(function.Body, func(n ast.Node) bool {
			ident, is := n.(*ast.Ident)
			if !is {
				return true
			}
			used, is := p.TypesInfo.Uses[ident].(*types.Func)
			switch {
			case !is:
			case strings.HasPrefix(used.Name(), "Example"):
				r.tested[used.Name()] = true
			case isExample:
				r.shown[key(used)] = true
			}
			return true
		})
	}
}

// key returns a function's name, or "Type.Method".
func key(f *types.Func) string {
	receiver := f.Signature().Recv()
	if receiver == nil {
		return f.Name()
	}
	of := receiver.Type()
	if pointer, is := of.(*types.Pointer); is {
		of = pointer.Elem()
	}
	named, is := of.(*types.Named)
	if !is {
		return f.Name()
	}
	return named.Obj().Name() + "." + f.Name()
}

// accessor reports whether a method only returns something: one value, or several without an
// error, without an argument.
func accessor(method *types.Func) bool {
	results := method.Signature().Results()
	return method.Signature().Params().Len() == 0 && (results.Len() == 1 ||
		results.Len() > 1 && results.At(results.Len()-1).Type().String() != "error")
}

// internal reports whether a method takes a type of an internal package, so that only packages of the module can call it.
func internal(method *types.Func) bool {
	for param := range method.Signature().Params().Variables() {
		if strings.Contains(param.Type().String(), "/internal/") {
			return true
		}
	}
	return false
}

// wellKnown are methods that implement an interface of the standard library, or of
// a library that users know.
var wellKnown = []string{"Error", "Is", "Unwrap", "String", "MarshalJSON", "NextBackOff", "Reset", "Close", "OpenTopicURL", "OpenSubscriptionURL"}

// implements reports whether a method belongs to an interface: a well-known one,
// or one that the package exports.
func implements(p *types.Package, named *types.Named, method string) bool {
	if slices.Contains(wellKnown, method) {
		return true
	}
	for _, name := range p.Scope().Names() {
		object := p.Scope().Lookup(name)
		wanted, is := object.Type().Underlying().(*types.Interface)
		if !is || !object.Exported() || !types.Implements(types.NewPointer(named), wanted) {
			continue
		}
		for has := range wanted.Methods() {
			if has.Name() == method {
				return true
			}
		}
	}
	return false
}
