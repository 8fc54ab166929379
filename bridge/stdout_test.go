package bridge

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestStdout(t *testing.T) {
	mysqltest.Once(t)
	outs := map[string]*mysqltest.Text{}
	conform(t, target{
		destination: func(topic string) *Destination {
			if outs[topic] == nil {
				outs[topic] = &mysqltest.Text{}
			}
			return Writer(outs[topic])
		},
		read: func(t *testing.T, topic string) []stored { return parseLines(t, []byte(outs[topic].String())) },
	})
}

// A write error of stdout ends the bridge, because it can't be opened again.
func TestStdoutBroken(t *testing.T) {
	mysqltest.Once(t)
	sink, err := Writer(brokenPipe{}).Open(t.Context())
	require.NoError(t, err)
	n, err := sink.Send(t.Context(), messages("t", 1, 3))
	require.Zero(t, n)
	require.ErrorAs(t, err, new(*PermanentError))
	require.ErrorIs(t, err, errBroken)
}

var errBroken = errors.New("broken pipe")

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errBroken }
