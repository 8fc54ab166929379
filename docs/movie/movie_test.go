package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// texts are those of a picture, which must be well-formed.
func texts(t *testing.T, picture []byte) (all []string) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(picture))
	inText := false
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			inText = token.Name.Local == "text"
		case xml.EndElement:
			inText = false
		case xml.CharData:
			if inText {
				all = append(all, string(token))
			}
		}
	}
}

// The picture that is shown types the scenes, has what must come of them, and is small.
func TestDemo(t *testing.T) {
	picture, err := os.ReadFile("../demo.svg")
	require.NoError(t, err)
	require.Less(t, len(picture), 60_000)
	all := texts(t, picture)
	for _, s := range scenes {
		require.Contains(t, all, "$ "+s.text)
		require.Contains(t, strings.Join(all, "\n"), s.then)
		require.Contains(t, strings.Join(all, "\n"), s.until)
	}
}

// A command's output is there from the moment on in which it came, and typing takes time.
func TestRecord(t *testing.T) {
	lines, end, err := record(t.Context(), []scene{
		{terminal: 0, text: "echo ready; trap exit INT; while :; do sleep 0.01; done", until: "ready"},
		{terminal: 1, text: "echo '<one>'; echo two", then: "two"},
	})
	require.NoError(t, err)
	require.Len(t, lines, 5)
	require.Equal(t, line{terminal: 1, text: "<one>", at: lines[3].at}, lines[3])
	require.Greater(t, lines[2].at-lines[1].at, pause-time.Millisecond)
	require.Greater(t, lines[3].at-lines[2].at, time.Duration(len(lines[2].text))*perKey)
	require.GreaterOrEqual(t, end, lines[4].at)
	var picture bytes.Buffer
	require.NoError(t, draw(&picture, lines, end+rest))
	require.Equal(t, []string{
		"terminal 1", "$ " + lines[0].text, "ready", "terminal 2", "$ echo '<one>'; echo two", "<one>", "two",
	}, texts(t, picture.Bytes()))
}

func TestRecordFails(t *testing.T) {
	_, _, err := record(t.Context(), []scene{{text: "exit 3"}})
	require.Error(t, err)
}
