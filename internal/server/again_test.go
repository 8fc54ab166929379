package server

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAgain(t *testing.T) {
	deadlock, other := &mysql.MySQLError{Number: ErrDeadlock}, &mysql.MySQLError{Number: ErrDuplicate}
	run := func(ctx context.Context, failures int, failure error) (runs int, err error) {
		err = Again(ctx, Retryable, func() error {
			if runs++; runs > failures {
				return nil
			}
			return fmt.Errorf("insert: %w", failure)
		})
		return runs, err
	}
	runs, err := run(t.Context(), 2, deadlock)
	require.NoError(t, err)
	assert.Equal(t, 3, runs)

	runs, err = run(t.Context(), Attempts, deadlock)
	require.ErrorIs(t, err, deadlock)
	assert.Equal(t, Attempts, runs)

	runs, err = run(t.Context(), 1, other)
	require.ErrorIs(t, err, other)
	assert.Equal(t, 1, runs)

	cause := errors.New("no longer wanted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	runs, err = run(ctx, Attempts, deadlock)
	require.ErrorIs(t, err, cause)
	require.ErrorIs(t, err, deadlock)
	assert.Less(t, runs, Attempts)
}
