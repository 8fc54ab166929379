package bridge_test

import (
	"testing"

	"github.com/mqnotify/mqnotify/bridge"
	"github.com/mqnotify/mqnotify/bridge/sinktest"
)

func init() {
	bridge.Conform = func(t *testing.T, to bridge.Target) {
		sinktest.Run(t, sinktest.Target{
			Destination: to.Destination, Refused: to.Refused, Secrets: to.Secrets,
			Read: func(t *testing.T, topic string) (all []sinktest.Stored) {
				for _, s := range to.Read(t, topic) {
					id, payload, trace := s.Fields()
					all = append(all, sinktest.Stored{ID: id, Payload: payload, Trace: trace})
				}
				return all
			},
			Stop: to.Stop, Restart: to.Restart, Freeze: to.Freeze, Held: to.Held, TooLarge: to.TooLarge,
			Deduplicates: to.Deduplicates, ConnectsOnSend: to.ConnectsOnSend,
		})
	}
}
