package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The repository has no programs, dumps and other large files that were added by mistake.
func TestFiles(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Skip("not in a clone: ", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(root, name))
		if !os.IsNotExist(err) { // a deleted file that is not committed yet
			require.NoError(t, err)
			require.Less(t, info.Size(), int64(256<<10), name)
		}
	}
}
