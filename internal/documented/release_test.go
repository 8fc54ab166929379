package documented

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The drivers in adapters/, which are modules of their own, require the newest release in the
// CHANGELOG, because a user who downloads one has no `replace`.
func TestReleased(t *testing.T) {
	const root = "../.."
	changes, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	require.NoError(t, err)
	want := "v0.0.0" // there is none yet
	if release := regexp.MustCompile(`(?m)^## \[(\d[^]]*)\]`).FindSubmatch(changes); release != nil {
		want = "v" + string(release[1])
	}
	drivers, err := filepath.Glob(filepath.Join(root, "adapters", "*", "go.mod"))
	require.NoError(t, err)
	require.NotEmpty(t, drivers)
	for _, file := range drivers {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		required := regexp.MustCompile(`(?m)^(?:require)?\s+github\.com/mqnotify/mqnotify (v\S+)`).FindSubmatch(text)
		require.NotNil(t, required, file)
		require.Equal(t, want, string(required[1]), file)
	}
}
