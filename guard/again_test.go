package guard

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/notify"
)

// The end of the context does not hide that a commit may have happened.
func TestUnknownAfterTheContext(t *testing.T) {
	for _, result := range []error{fmt.Errorf("commit: %w", notify.ErrUnknown), errors.New("something else")} {
		ctx, cancel := context.WithCancelCause(t.Context())
		err := repeat(ctx, func(error) bool { return false }, func() error {
			cancel(notify.ErrLockLost)
			return result
		})
		unknown := errors.Is(result, notify.ErrUnknown)
		require.Equal(t, unknown, errors.Is(err, notify.ErrUnknown), "%v", err)
		require.Equal(t, !unknown, errors.Is(err, notify.ErrLockLost), "%v", err)
	}
}
