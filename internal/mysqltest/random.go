package mysqltest

import (
	"cmp"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
)

// envSeed repeats the random choices of an earlier run.
const envSeed = "MQNOTIFY_TEST_SEED"

// seed is the seed of this run. Processes that a test starts inherit it.
var seed = sync.OnceValue(func() string {
	value := cmp.Or(os.Getenv(envSeed), strconv.FormatUint(rand.Uint64(), 10))
	if err := os.Setenv(envSeed, value); err != nil {
		panic(err)
	}
	return value
})

// Random returns the test's source of random choices. They depend only on MQNOTIFY_TEST_SEED and on the test's name. A failed
// test logs the seed, with which it makes the same choices again. The source is safe for concurrent use: goroutines that share
// it get its choices in the order of their calls.
func Random(tb testing.TB) *rand.Rand {
	tb.Helper()
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the random choices of this test are repeated with %s=%s", envSeed, seed())
		}
	})
	return RandomOf(tb.Name())
}

// RandomOf is [Random] for a process that a test has started: the choices depend on the seed and on the name.
func RandomOf(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(seed())) // a hash never fails
	first := h.Sum64()
	_, _ = h.Write([]byte(name))
	return rand.New(&lockedSource{source: rand.NewPCG(first, h.Sum64())})
}

// lockedSource is a source that is safe for concurrent use. A rand.Rand has no state but its source.
type lockedSource struct {
	mu     sync.Mutex
	source rand.Source
}

func (s *lockedSource) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source.Uint64()
}
