package mysqltest

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSample(t *testing.T) {
	in := 0
	for n := range 1000 {
		one := inSample("1", "/a/queue", "Test"+strconv.Itoa(n))
		if one {
			in++
		}
		require.Equal(t, one, inSample("1", "/b/queue", "Test"+strconv.Itoa(n)), "it is repeated, whatever the folder is in")
	}
	require.InDelta(t, 500, in, 100)

	ran := 0
	for n := range 40 {
		t.Setenv(envSample, strconv.Itoa(n))
		t.Run("some", func(t *testing.T) {
			sample(t)
			ran++
		})
	}
	require.Less(t, ran, 40)
	require.Positive(t, ran, "each test runs in some samples")
	t.Setenv(envWhole, "./queue internal/mysqltest")
	for n := range 40 {
		t.Setenv(envSample, strconv.Itoa(n))
		t.Run("all", func(t *testing.T) {
			sample(t)
			ran++
		})
	}
	require.GreaterOrEqual(t, ran, 41, "all tests of a package that has changed run")
}
