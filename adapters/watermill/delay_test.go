package watermill

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// A message that is published some time after its delay was set is neither early nor a second late, although its due time is
// stored in whole seconds.
func TestDelayOf(t *testing.T) {
	for _, set := range []time.Duration{0, 500 * time.Millisecond, 5 * time.Second, time.Minute} {
		for part := time.Duration(0); part < time.Second; part += 50 * time.Millisecond {
			due := time.Now().Truncate(time.Second).Add(20*time.Second + part)
			m := message.NewMessage("m", nil)
			delay.Message(m, delay.Until(due))
			m.Metadata.Set(delay.DelayedForKey, (time.Until(due) + set).String()) // as if the delay was set that long ago
			wait, err := delayOf(m)
			left := time.Until(due)
			require.NoError(t, err)
			require.GreaterOrEqual(t, wait, left, "set %s ago, %s lost", set, part)
			require.LessOrEqual(t, wait, left+time.Second+100*time.Millisecond)
			require.LessOrEqual(t, wait, left+set+100*time.Millisecond)
		}
	}
}
