package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// root is the root of the repository.
const root = ".."

// A page marks what the tests do with its code. The first word of a fence is the language:
//
//	sh, sql, go      The block is run.
//	text, json, ...  The block is for reading. With the word "output" after the language, it is
//	                 the output of a command of the last sh block.
//
// HTML comments, which no reader sees, mark the next block or give code:
//
//	<!-- not run: why -->
//	<!-- given sh         Code that the reader is supposed to have. It is run, or for go declared,
//	...                   before the page's next block.
//	-->
const (
	markNotRun = "not run:"
	markGiven  = "given "
	wordOutput = "output"
)

// readOnly are the languages of blocks that nothing runs.
var readOnly = []string{"text", "json", "yaml", "ini", "html", "javascript", "sse", "logfmt"}

// block is a piece of code in a page.
type block struct {
	page     string
	line     int
	language string
	text     string
	output   bool   // the block is the output of the commands before it
	given    bool   // the code is in a comment
	notRun   string // why the block is not run, or empty
}

func (b block) at() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// pages returns the files whose code is tested.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, folder := range []string{"docs", "docs/guide", "docs/reference", "docs/internals"} {
		files, err := filepath.Glob(filepath.Join(root, folder, "*.md"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			all = append(all, filepath.Join(folder, filepath.Base(file)))
		}
	}
	return append(all, "README.md", "CONTRIBUTING.md")
}

// parse returns a page as a tree, with its text.
func parse(t *testing.T, page string) (ast.Node, []byte) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root, page))
	require.NoError(t, err)
	markdown := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	return markdown.Parser().Parse(text.NewReader(source)), source
}

// blocks returns a page's pieces of code, from top to bottom.
func blocks(t *testing.T, page string) (all []block) {
	t.Helper()
	tree, source := parse(t, page)
	notRun := ""
	line := func(n ast.Node) int {
		if n.Lines().Len() == 0 {
			return 0
		}
		return 1 + strings.Count(string(source[:n.Lines().At(0).Start]), "\n")
	}
	require.NoError(t, ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.HTMLBlock:
			comment := string(n.Lines().Value(source))
			if n.HasClosure() {
				comment += string(n.ClosureLine.Value(source))
			}
			comment = inComment(comment)
			if why, is := strings.CutPrefix(comment, markNotRun); is {
				notRun = strings.TrimSpace(why)
				require.NotEmpty(t, notRun, "%s:%d: say why", page, line(n))
			}
			if given, is := strings.CutPrefix(comment, markGiven); is {
				language, text, _ := strings.Cut(given, "\n")
				all = append(all, block{page: page, line: line(n) + 1, language: strings.TrimSpace(language), text: text, given: true})
			}
		case *ast.CodeBlock:
			return ast.WalkStop, fmt.Errorf("%s:%d: put the code between ``` and say its language", page, line(n))
		case *ast.FencedCodeBlock:
			b := block{page: page, line: line(n), text: string(n.Lines().Value(source)), notRun: notRun}
			notRun = ""
			if n.Info != nil {
				words := strings.Fields(string(n.Info.Value(source)))
				b.language, b.output = words[0], slices.Contains(words[1:], wordOutput)
			}
			all = append(all, b)
		case *ast.Heading, *ast.Paragraph:
			if notRun != "" {
				return ast.WalkStop, fmt.Errorf("%s:%d: no block follows the mark %q", page, line(n), notRun)
			}
		}
		return ast.WalkContinue, nil
	}))
	return all
}

// inComment returns the text of an HTML comment, or "" for other HTML.
func inComment(html string) string {
	text, is := strings.CutPrefix(strings.TrimSpace(html), "<!--")
	if !is {
		return ""
	}
	return strings.TrimSpace(strings.TrimSuffix(text, "-->"))
}

// Every block names a language that the tests know, and few blocks are not run.
func TestBlocks(t *testing.T) {
	run, notRun := 0, 0
	for _, page := range pages(t) {
		for _, b := range blocks(t, page) {
			switch {
			case b.notRun != "":
				notRun++
				t.Logf("not run: %s: %s", b.at(), b.notRun)
			case b.language == "sh" || b.language == "sql" || b.language == "go":
				run++
			default:
				require.Contains(t, readOnly, b.language, "%s: name the language: sh, sql and go are run, and these are not", b.at())
			}
		}
	}
	t.Logf("%d blocks run, %d not", run, notRun)
	require.Greater(t, run, 50)
	require.Less(t, notRun, 20)
}
