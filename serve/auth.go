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

// scope is what a token allows, of a topic. scopeAdmin has the others in it.
type scope string

const (
	scopeRead    scope = "read"    // messages, and the topic's state
	scopePublish scope = "publish" // new messages
	scopeAdmin   scope = "admin"   // dead letters, too
)

// token is what a client shows as "Authorization: Bearer ...".
type token struct {
	name   string             // for logs
	hash   [sha256.Size]byte  // SHA-256
	scopes map[scope][]string // topics by scope; "*" is all topics, "orders_*" those that begin so
}

// tokens are who may do what. None at all lets everybody do everything, which a
// server on the loopback alone allows.
type tokens []token

const minToken = 16

// ReadTokens returns the lines of a file for Options.Tokens. Its errors name the line, and show nothing of a token. A file that
// other users can read is an error that names the chmod.
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
				return nil, fmt.Errorf("line %d: the token is that of %s", i+1, other.name)
			}
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return nil, errors.New("there is no token in it")
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
			return token{}, errors.New("sha256: is followed by 64 hexadecimal digits (printf %s TOKEN | sha256sum)")
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
			return token{}, errors.New("a scope is read, publish or admin, and its topics: read:orders,invoices or admin:*")
		}
		for topic := range strings.SplitSeq(topics, ",") {
			if topic == "" || strings.Contains(strings.TrimSuffix(topic, "*"), "*") {
				return token{}, errors.New("a topic is a name, * or a name's beginning and *")
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

// ofNothing reports whether the hash is that of an empty token, as printf or echo prints an unset
// variable, or no hash at all.
func ofNothing(hash [sha256.Size]byte) bool {
	return hash == [sha256.Size]byte{} || hash == sha256.Sum256(nil) || hash == sha256.Sum256([]byte("\n"))
}

// find returns the token that was shown, nil if it is none. It takes as long whichever
// it is, and whether it is one. A short token is none, whatever hash the file has.
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

// everybody is the token of every request where the server has no tokens.
var everybody = &token{name: "everybody", scopes: map[scope][]string{scopeAdmin: {"*"}}}

// token is whose request it is, nil if no token, or a wrong one, is shown.
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
