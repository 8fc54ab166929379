package header

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestReserved(t *testing.T) {
	for name, want := range map[string]bool{"mqnotify-retry": true, "MQNOTIFY-x": true, "Mqnotify-": true, "mqnotify": false, "kind": false, "x-mqnotify-id": false, "": false} {
		assert.Equal(t, want, Reserved(name), name)
	}
}
