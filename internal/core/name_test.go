package core_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// names are parts that are easily confused with one another.
var names = [][]string{
	{}, {""}, {"", ""}, {"", "", ""},
	{"a"}, {"a", ""}, {"", "a"}, {"a", "b"}, {"a:b"}, {"a:", "b"}, {"a", ":b"}, {"a:b", ""}, {"a::b"}, {"ab"},
	{"A"}, {"A", "b"}, {"a", "B"}, {"orders"}, {"Orders"}, {"ORDERS"}, {"orders "}, {" orders"}, {"orders_"}, {"orders#"},
	{"größe"}, {"GRÖSSE"}, {"gröẞe"}, {"注文"}, {"注"}, {"K"}, {"k"}, // the Kelvin sign
	{"a\x00b"}, {"a\xffb"}, {"a\xfeb"}, {"a\ufffdb"}, {"a'b"}, {"a`b"}, {"a\\b"}, {"a%b"}, {"a\nb"},
	{"1", "11"}, {"11", "1"}, {"1:1:1"}, {"#50f7b20eb2b7f2282617"}, {"report", "shop", "daily#50f7b20eb2b7f2282617"},
	{strings.Repeat("x", 55)}, {strings.Repeat("x", 56)}, {strings.Repeat("x", 57)}, {strings.Repeat("X", 55)},
	{strings.Repeat("x", 64), "a"}, {strings.Repeat("x", 64), "b"}, {strings.Repeat("x", 1<<16)},
}

func TestLockName(t *testing.T) {
	assert.Equal(t, "mqnotify:handshake:shop:orders", core.HandshakeName("shop", "orders"))
	assert.Equal(t, "mqnotify:a_1.b-c", core.LockName("a_1.b-c"))
	of := map[string][]string{}
	for _, parts := range names {
		name := core.LockName(parts...)
		requireName(t, name)
		assert.Equal(t, name, core.LockName(parts...))
		assert.NotContains(t, of, name, "%q and %q", parts, of[name])
		of[name] = parts
	}
}

func requireName(tb testing.TB, name string) {
	tb.Helper()
	require.LessOrEqual(tb, len(name), 64)
	require.True(tb, strings.HasPrefix(name, "mqnotify:"), name)
	require.Equal(tb, strings.ToLower(name), name)
	for _, r := range name {
		require.True(tb, r > ' ' && r <= '~', "%q", name)
	}
}

// Every server distinguishes the locks of all these names.
func TestLockNamesAreDistinct(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		session, other := openSession(t, db, 0), openSession(t, db, 0)
		for _, parts := range names {
			lock, err := session.TryLock(t.Context(), core.LockName(parts...))
			require.NoError(t, err, "%q", parts)
			requireHeld(t, lock, true)
		}
		for _, parts := range names {
			_, err := other.TryLock(t.Context(), core.LockName(parts...))
			require.ErrorIs(t, err, core.ErrNotAcquired, "%q", parts)
		}
	})
}

// The same text, split at different places and in another case.
func FuzzLockName(f *testing.F) {
	for _, parts := range names {
		f.Add(strings.Join(parts, ","), strings.Join(parts, ":"))
	}
	f.Add("a,b", "a,B")
	f.Fuzz(func(t *testing.T, a, b string) {
		one, two := strings.Split(a, ","), strings.Split(b, ",")
		nameOne, nameTwo := core.LockName(one...), core.LockName(two...)
		requireName(t, nameOne)
		requireName(t, nameTwo)
		require.Equal(t, a == b, nameOne == nameTwo, "%q %q: %s %s", one, two, nameOne, nameTwo)
		upper := strings.Split(strings.ToUpper(a), ",")
		require.Equal(t, strings.ToUpper(a) == a, core.LockName(upper...) == nameOne)
		require.NotEqual(t, nameOne, core.LockName(append(one, "")...))
		require.NotEqual(t, nameOne, core.LockName(a, "x"))
		if len(one) > 1 {
			require.NotEqual(t, nameOne, core.LockName(strings.Join(one, ":")))
			require.NotEqual(t, nameOne, core.LockName(strings.Join(one, "")))
		}
	})
}
