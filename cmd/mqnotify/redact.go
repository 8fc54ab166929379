package main

import (
	"bytes"
	"io"
	"sync"
)

// redactor is a writer for logs and errors that replaces secrets. It is a second defense: no text should contain one. Safe for
// concurrent use.
type redactor struct {
	mu      sync.Mutex
	to      io.Writer
	secrets [][2][]byte
}

// hide makes the redactor write instead in place of secret.
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

// redact returns the text with its secrets replaced.
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
