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

// Every case runs on a server and every server runs a case, for any number of cases. If they have run before, as many run as there are
// servers, each once.
func TestRotate(t *testing.T) {
	servers := len(entries(t))
	for _, n := range []int{1, servers, servers + 2} {
		for _, form := range []string{"normal", envAgain, envLong} {
			t.Setenv(envAgain, "")
			t.Setenv(envLong, "")
			want, met := max(n, servers), map[*entry]bool{}
			switch form {
			case "normal":
				if testing.Short() {
					want = max((n+2)/3, servers)
				}
			case envAgain:
				t.Setenv(envAgain, "1")
				want = min(n, servers)
			case envLong:
				t.Setenv(envLong, "1")
				want = n * servers
			}
			tried := map[int]bool{}
			all := rotation(t, numbered(n))
			for _, r := range all {
				tried[r.what], met[r.entry] = true, true
			}
			require.Len(t, all, want, form)
			require.Len(t, tried, min(n, want), form)
			require.Len(t, met, min(servers, want), form)
		}
	}
}

func numbered(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
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
