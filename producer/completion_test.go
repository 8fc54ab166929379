package producer

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A server whose sessions begin the next transaction at a COMMIT keeps no message back.
func TestPublishAfterAChainedCommit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t, "--completion-type=CHAIN")
		db, other := topicOn(t, s, "x"), s.Admin(t)
		p := newProducer(t, db, "x", Options{BatchRows: 1})
		_, err := p.Publish(t.Context(), Message{}, Message{}) // a transaction
		require.NoError(t, err)
		for range 3 {
			_, err = p.Publish(t.Context(), Message{})
			require.NoError(t, err)
		}
		assert.Equal(t, 5, mysqltest.Value[int](t, other, "SELECT COUNT(*) FROM `"+db.Name()+"`.x"))
	})
}
