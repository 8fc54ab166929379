package serve

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/mqnotify/mqnotify/internal/private"
)

// scope is a permission for a topic. scopeAdmin includes the others.
type scope string

const (
	scopeRead    scope = "read"    // read messages and the topic's state
	scopePublish scope = "publish" // publish messages
	scopeAdmin   scope = "admin"   // see and change dead letters, and all of the above
)

// token is a secret that a client sends as "Authorization: Bearer ...", and its scopes.
type token struct {
	name   string // for logs
	hash   [sha256.Size]byte
	scopes map[scope][]string // topics by scope; "*" is all topics, "orders_*" all whose names begin with orders_
}

// tokens are the tokens that a server accepts. If there are none, every request may do everything; Serve then requires an address
// that only this machine can reach.
type tokens []token

const minToken = 16

// ReadTokens returns the lines of a file for Options.Tokens. Its errors name the line and contain no part of a token. If other users
// can read the file, the error names the chmod that repairs it.
func ReadTokens(file string) ([]string, error) {
	text, err := private.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("serve: read tokens: %w", err)
	}
	lines := strings.Split(string(text), "\n")
	if _, err := parseTokens(lines); err != nil {
		return nil, fmt.Errorf("serve: read tokens: %s: %w", file, err)
	}
	return lines, nil
}

// parseTokens reads lines of a file of tokens.
func parseTokens(lines []string) (tokens, error) {
	var all tokens
	for i, line := range lines {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		t, err := parseToken(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		for _, other := range all {
			if other.hash == t.hash {
				return nil, fmt.Errorf("line %d: %s has the same token", i+1, other.name)
			}
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return nil, errors.New("it has no token")
	}
	return all, nil
}

func parseToken(fields []string) (token, error) {
	if len(fields) < 3 {
		return token{}, errors.New("write NAME TOKEN SCOPE:TOPIC..., such as: shop 0123456789abcdef publish:orders")
	}
	t := token{name: fields[0], hash: sha256.Sum256([]byte(fields[1])), scopes: map[scope][]string{}}
	if digits, hashed := strings.CutPrefix(fields[1], "sha256:"); hashed {
		hash, err := hex.DecodeString(digits)
		if err != nil || len(hash) != sha256.Size {
			return token{}, errors.New("write 64 hexadecimal digits after sha256: (printf %s TOKEN | sha256sum)")
		}
		if t.hash = [sha256.Size]byte(hash); ofNothing(t.hash) {
			return token{}, errors.New("it is the hash of an empty token: was a variable unset? (TOKEN=$(openssl rand -hex 24) makes a good one)")
		}
	} else if len(fields[1]) < minToken {
		return token{}, fmt.Errorf("the token has fewer than %d characters (openssl rand -hex 24 makes a good one)", minToken)
	}
	for _, field := range fields[2:] {
		word, topics, _ := strings.Cut(field, ":")
		of := scope(word)
		if of != scopeRead && of != scopePublish && of != scopeAdmin || topics == "" {
			return token{}, errors.New("write a scope as read, publish or admin and its topics: read:orders,invoices or admin:*")
		}
		for topic := range strings.SplitSeq(topics, ",") {
			if topic == "" || strings.Contains(strings.TrimSuffix(topic, "*"), "*") {
				return token{}, errors.New("write a topic as a name, as *, or as the beginning of names and *")
			}
			t.scopes[of] = append(t.scopes[of], topic)
		}
	}
	return t, nil
}

// allows reports whether the token grants a scope of a topic.
func (t *token) allows(wanted scope, topic string) bool {
	for _, has := range []scope{wanted, scopeAdmin} {
		for _, pattern := range t.scopes[has] {
			beginning, all := strings.CutSuffix(pattern, "*")
			if topic == pattern || all && strings.HasPrefix(topic, beginning) {
				return true
			}
		}
	}
	return false
}

// ofNothing reports whether the hash is all zeros, or that of an empty token, which printf or echo prints of an unset variable.
func ofNothing(hash [sha256.Size]byte) bool {
	return hash == [sha256.Size]byte{} || hash == sha256.Sum256(nil) || hash == sha256.Sum256([]byte("\n"))
}

// find returns the token with this text, nil if there is none. Its time does not depend on the result. A text shorter than minToken
// is never a token, even if the file has its hash.
func (t tokens) find(shown string) (found *token) {
	if len(shown) < minToken {
		return nil
	}
	hash := sha256.Sum256([]byte(shown))
	for i := range t {
		if subtle.ConstantTimeCompare(hash[:], t[i].hash[:]) == 1 {
			found = &t[i]
		}
	}
	return found
}

// everybody is the token of every request if the server has no tokens.
var everybody = &token{name: "everybody", scopes: map[scope][]string{scopeAdmin: {"*"}}}

// token returns the request's token, nil if it has none or a wrong one.
func (s *Server) token(r *http.Request) *token {
	if len(s.options.tokens) == 0 {
		return everybody
	}
	kind, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") {
		shown = ""
	}
	return s.options.tokens.find(strings.TrimSpace(shown))
}
