package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/yuin/goldmark/ast"
)

// Every link within the repository leads to a file that exists and, if it names a heading, to a heading in that file.
func TestLinks(t *testing.T) {
	all, links := append(pages(t), "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md"), 0
	for _, page := range all {
		tree, _ := parse(t, page)
		require.NoError(t, ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
			var to string
			switch n := n.(type) {
			case *ast.Link:
				to = string(n.Destination)
			case *ast.Image:
				to = string(n.Destination)
			}
			if !entering || to == "" || strings.Contains(to, "://") {
				return ast.WalkContinue, nil
			}
			links++
			file, heading, _ := strings.Cut(to, "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			_, err := os.Stat(filepath.Join(root, target))
			require.NoError(t, err, page)
			if heading != "" {
				require.Contains(t, headings(t, target), heading, "%s: %s", page, to)
			}
			return ast.WalkContinue, nil
		}))
	}
	require.Greater(t, links, 50)
}

// headings returns the anchors of a page's headings.
func headings(t *testing.T, page string) (all []string) {
	t.Helper()
	tree, _ := parse(t, page)
	require.NoError(t, ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if heading, is := n.(*ast.Heading); is && entering {
			if id, has := heading.AttributeString("id"); has {
				all = append(all, string(id.([]byte)))
			}
		}
		return ast.WalkContinue, nil
	}))
	return all
}
