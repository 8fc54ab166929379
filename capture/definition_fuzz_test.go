package capture

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzDefinition checks that any trigger text gives an error or a definition, and that an encoded definition is decoded unchanged.
func FuzzDefinition(f *testing.F) {
	f.Add("BEGIN END", "orders", "id", "int(11)")
	f.Add("'mqnotify capture %7B%22table%22:%22x%22%7D'", "o'r%", "`", "enum('a\\','b')")
	f.Fuzz(func(t *testing.T, text, table, name, kind string) {
		_, _ = decodeDefinition(text)
		d := definition{Table: table, Topic: "t", Columns: []column{{name, kind}}}
		encoded, err := d.encode()
		require.NoError(t, err)
		again, err := decodeDefinition(text + " '" + encoded + "' " + text)
		if err == nil && again.Table == table { // else text has a definition of its own, or the name is none
			require.Equal(t, []column{{valid(name), valid(kind)}}, again.Columns)
		}
	})
}

// valid is a text as JSON has it.
func valid(text string) string { return string([]rune(text)) }
