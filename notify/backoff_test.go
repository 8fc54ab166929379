package notify_test

import (
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"

	"github.com/mqnotify/mqnotify/notify"
)

func TestFibonacci(t *testing.T) {
	for name, test := range map[string]struct {
		policy notify.Fibonacci
		want   []time.Duration
	}{
		"grows to the maximum": {notify.Fibonacci{Min: 2, Max: 20}, []time.Duration{2, 2, 4, 6, 10, 16, 20, 20, 20}},
		"zero is the default": {notify.Fibonacci{}, []time.Duration{
			10e6, 10e6, 20e6, 30e6, 50e6, 80e6, 130e6, 210e6, 340e6, 550e6, 890e6, 1e9, 1e9,
		}},
		"maximum below minimum": {notify.Fibonacci{Min: 5, Max: 3}, []time.Duration{3, 3, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				var got []time.Duration
				for range test.want {
					got = append(got, test.policy.NextBackOff())
				}
				assert.Equal(t, test.want, got)
				test.policy.Reset()
			}
		})
	}
}

func TestFibonacciJitter(t *testing.T) {
	for _, test := range []struct {
		jitter, least float64
	}{{0, 1}, {0.1, 0.9}, {1, 0}, {7, 0}} {
		policy := notify.Fibonacci{Min: time.Second, Max: time.Second, Jitter: test.jitter}
		shortest, longest := time.Hour, time.Duration(0)
		for range 2000 {
			wait := policy.NextBackOff()
			shortest, longest = min(shortest, wait), max(longest, wait)
		}
		least := time.Duration(test.least * float64(time.Second))
		assert.GreaterOrEqual(t, shortest, least)
		assert.LessOrEqual(t, longest, time.Second)
		spread := time.Second - least
		assert.InDelta(t, float64(least), float64(shortest), float64(spread)/10, "jitter %v", test.jitter)
		assert.InDelta(t, float64(time.Second), float64(longest), float64(spread)/10, "jitter %v", test.jitter)
	}
}

// The wait doubles up to the maximum, and the policy never stops, while the library's default stops
// after 15 minutes.
func TestExponential(t *testing.T) {
	policy := notify.Exponential(time.Second, 10*time.Second)
	for range 2 {
		for _, want := range []time.Duration{1e9, 2e9, 4e9, 8e9, 10e9, 10e9} {
			assert.InDelta(t, float64(want), float64(policy.NextBackOff()), 0.2*float64(want)+1)
		}
		policy.Reset()
	}
	exponential, ok := policy.(*backoff.ExponentialBackOff)
	assert.True(t, ok)
	exponential.Clock = clock{time.Now().Add(1000 * time.Hour)}
	assert.NotEqual(t, backoff.Stop, policy.NextBackOff())
}

type clock struct{ now time.Time }

func (c clock) Now() time.Time { return c.now }
