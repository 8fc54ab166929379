package mysqltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// envChromium names the browser.
const envChromium = "MQNOTIFY_TEST_CHROMIUM"

// Chromium returns the path of a browser: the one that MQNOTIFY_TEST_CHROMIUM names, the one that scripts/chromium has
// unpacked, or the installed one. It skips the test if there is no browser, and with -short.
func Chromium(tb testing.TB) string {
	tb.Helper()
	if testing.Short() {
		tb.Skip("the short form uses no browser")
	}
	if path := os.Getenv(envChromium); path != "" {
		return path
	}
	if cache, err := cacheFolder(); err == nil {
		path := filepath.Join(cache, "chromium", "chromium")
		if exec.CommandContext(tb.Context(), path, "--version").Run() == nil {
			return path
		}
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		tb.Skip("needs a browser: scripts/chromium gets it")
	}
	return path
}
