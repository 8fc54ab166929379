package watermill

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// A message that is published some time after its delay was set comes neither early, whatever part of a second its time has
// lost, nor a second late.
func TestDelayOf(t *testing.T) {
	for _, set := range []time.Duration{0, 500 * time.Millisecond, 5 * time.Second, time.Minute} {
		for part := time.Duration(0); part < time.Second; part += 50 * time.Millisecond {
			due := time.Now().Truncate(time.Second).Add(20*time.Second + part)
			m := message.NewMessage("m", nil)
			delay.Message(m, delay.Until(due))
			m.Metadata.Set(delay.DelayedForKey, (time.Until(due) + set).String()) // as set that long ago
			wait, err := delayOf(m)
			left := time.Until(due)
			require.NoError(t, err)
			require.GreaterOrEqual(t, wait, left, "set %s ago, %s lost", set, part)
			require.LessOrEqual(t, wait, left+time.Second+100*time.Millisecond)
			require.LessOrEqual(t, wait, left+set+100*time.Millisecond)
		}
	}
}
