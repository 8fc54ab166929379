package main

import (
	"bytes"
	"io"
	"sync"
)

// redactor writes logs and errors with the password taken out, should any have
// come so far. Safe for concurrent use.
type redactor struct {
	mu      sync.Mutex
	to      io.Writer
	secrets [][2][]byte
}

// hide shows the second in the place of the first.
func (r *redactor) hide(secret, instead string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secrets = append(r.secrets, [2][]byte{[]byte(secret), []byte(instead)})
}

func (r *redactor) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.to.Write(r.redacted(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// redact returns the text without what is hidden.
func (r *redactor) redact(text []byte) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.redacted(text)
}

func (r *redactor) redacted(text []byte) []byte {
	for _, secret := range r.secrets {
		text = bytes.ReplaceAll(text, secret[0], secret[1])
	}
	return text
}
