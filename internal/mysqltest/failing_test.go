package mysqltest

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// envFails is set in the processes that TestFailureSays starts. It makes TestFails fail.
const envFails = "MQNOTIFY_TEST_FAILS"

// It fails on purpose, after a random choice and on a server that has logged lines, when TestFailureSays runs it.
func TestFails(t *testing.T) {
	if os.Getenv(envFails) == "" {
		t.Skip("fails on purpose, when TestFailureSays runs it")
	}
	Each(t, func(t *testing.T, s *Server) {
		own := s.Start(t)
		t.Fatalf("on port %d the choice is %d", own.port, Random(t).Uint64())
	})
}

// A failed test names its server, shows what the server has logged, and prints the seed that repeats its random choices.
func TestFailureSays(t *testing.T) {
	NotShort(t, "TestFails")
	t.Parallel()
	fail := func(seed string) string {
		one := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFails$")
		one.Env = append(os.Environ(), envFails+"=1", envSeed+"="+seed)
		out, err := one.CombinedOutput()
		require.Error(t, err)
		return string(out)
	}
	find := func(text, pattern string) string {
		found := regexp.MustCompile(pattern).FindStringSubmatch(text)
		require.NotNil(t, found, "%s is not in\n%s", pattern, text)
		return found[1]
	}
	first := fail("")
	server := find(first, `--- FAIL: TestFails/(\S+)`)
	require.Contains(t, first, "the end of what "+server+" has logged during the test")
	require.Regexp(t, `(?i)ready for connections`, first)
	seed, choice := find(first, envSeed+`=(\d+)`), find(first, `the choice is (\d+)`)
	require.Contains(t, fail(seed), "the choice is "+choice)
	require.NotContains(t, fail(seed+"1"), "the choice is "+choice)
}

// All cases run, and in short a third of them.
func TestSome(t *testing.T) {
	t.Setenv(envLong, "")
	all := []int{1, 2, 3, 4}
	if !testing.Short() {
		require.Equal(t, all, Some(t, all))
		return
	}
	some := Some(t, all)
	require.Len(t, some, 2)
	require.Subset(t, all, some)
	require.Equal(t, []int{1, 2, 3, 4}, all, "the caller's cases keep their order")
	require.Len(t, Some(t, []int{1}), 1)
	t.Setenv(envLong, "1")
	require.Equal(t, all, Some(t, all))
}

func TestSize(t *testing.T) {
	t.Setenv(envLong, "1")
	require.Equal(t, "long", Size("short", "normal", "long"))
	require.Equal(t, "long", Many("short", "normal", "long"))
	t.Setenv(envLong, "")
	if testing.Short() {
		require.Equal(t, "short", Size("short", "normal", "long"))
	} else {
		require.Equal(t, "normal", Size("short", "normal", "long"))
	}
	require.Equal(t, raced || testing.Short(), Many("short", "normal", "long") == "short")
}
