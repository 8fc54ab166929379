package private

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A file that only its owner can read is accepted, and no other; the error contains the command that repairs it.
func TestReadFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("it has no such permissions")
	}
	file := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(file, []byte("x"), Mode))
	for mode, readable := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o700: false, 0o640: true, 0o604: true, 0o644: true, 0o620: true, 0o666: true} {
		require.NoError(t, os.Chmod(file, mode))
		text, err := ReadFile(file)
		if !readable {
			require.NoError(t, err, mode)
			assert.Equal(t, "x", string(text))
			continue
		}
		require.ErrorIs(t, err, ErrReadable, mode)
		assert.ErrorContains(t, err, "run chmod 600 "+file)
	}
	_, err := ReadFile(file + "-none")
	require.ErrorIs(t, err, os.ErrNotExist)
}
