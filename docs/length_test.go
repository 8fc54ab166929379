package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The pages together stay short enough to be read, and a page of the guide in five minutes. A page that grows takes its words from another one.
func TestLength(t *testing.T) {
	const most = 28_000
	words := func(page string) int {
		text, err := os.ReadFile(filepath.Join(root, page))
		require.NoError(t, err)
		return len(strings.Fields(string(text)))
	}
	sum := 0
	for _, page := range append(pages(t), "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md") {
		sum += words(page)
	}
	require.LessOrEqual(t, sum, most, "all pages")
	const fiveMinutes = 5 * 200
	for _, page := range pages(t) {
		if strings.Contains(page, "/guide/") {
			require.LessOrEqual(t, words(page), fiveMinutes, page)
		}
	}
	require.LessOrEqual(t, words("README.md"), 900)
	require.LessOrEqual(t, words("ARCHITECTURE.md"), 1_200)
}
