package serve

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzTokens checks that every file of tokens is either an error or a list of tokens that have scopes and are not empty.
func FuzzTokens(f *testing.F) {
	f.Add("shop 0123456789abcdef publish:orders\n# comment\n\nreader sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 read:*")
	f.Add("a b c")
	f.Add("a 0123456789abcdef admin:*,x*,y**")
	f.Fuzz(func(t *testing.T, text string) {
		tokens, err := parseTokens(strings.Split(text, "\n"))
		require.True(t, err != nil || len(tokens) > 0)
		for _, token := range tokens {
			require.False(t, ofNothing(token.hash))
			require.NotEmpty(t, token.scopes)
		}
	})
}

// FuzzStartOf checks that no start position of a client makes startOf panic.
func FuzzStartOf(f *testing.F) {
	f.Add("17", "beginning")
	f.Add("", "1041+1043-1050")
	f.Add("\xff", strings.Repeat("1", 70_000))
	f.Fuzz(func(_ *testing.T, header, after string) {
		r := &http.Request{Header: http.Header{"Last-Event-Id": {header}}, URL: &url.URL{RawQuery: "after=" + after}}
		_, _ = startOf(r)
	})
}
