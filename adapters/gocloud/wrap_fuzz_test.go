package gocloud

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gocloud.dev/pubsub/driver"
)

// FuzzWrap checks that unwrap never panics, and that it returns a wrapped message as it was sent.
func FuzzWrap(f *testing.F) {
	f.Add([]byte("body"), "name", "value")
	f.Add([]byte(magic+"{}\nx"), "", "")
	f.Add([]byte(magic), "a", "\n")
	f.Fuzz(func(t *testing.T, body []byte, name, value string) {
		_, _, _ = unwrap(body)
		payload, err := wrap(&driver.Message{Body: body, Metadata: map[string]string{name: value}})
		require.NoError(t, err)
		metadata, again, err := unwrap(payload)
		require.NoError(t, err)
		require.Len(t, metadata, 1)
		require.Equal(t, string(body), string(again))
	})
}
