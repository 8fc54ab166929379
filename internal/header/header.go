// Package header has the reserved names of headers and their stored form.
package header

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Prefix is the beginning of reserved names, in capitals or not.
const Prefix = "mqnotify-"

// Reserved reports whether a header's name is reserved.
func Reserved(name string) bool {
	return len(name) >= len(Prefix) && strings.EqualFold(name[:len(Prefix)], Prefix)
}

// Marshal returns headers as a JSON object. It is json.Marshal without the escapes for HTML.
func Marshal(headers map[string]string) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(headers); err != nil {
		return nil, err
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}
