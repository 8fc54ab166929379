package serve

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/mqnotify/mqnotify/internal/private"
)

// Scope is what a token allows.
type Scope string

// The scopes, each of a topic. Admin has the others in it.
const (
	Read    Scope = "read"    // messages, and the topic's state
	Publish Scope = "publish" // new messages
	Admin   Scope = "admin"   // dead letters, too
)

// Token is what a client shows as "Authorization: Bearer ...".
type Token struct {
	// Name is for logs.
	Name string
	// Hash is the token's SHA-256.
	Hash [sha256.Size]byte
	// Scopes are topics by scope; "*" is all topics, "orders_*" those that begin so.
	Scopes map[Scope][]string
}

// Tokens are who may do what. None at all lets everybody do everything, which a
// server on the loopback alone allows.
type Tokens []Token

const minToken = 16

// ReadTokens reads a file of tokens: on each line a name, the token or
// "sha256:" and the hexadecimal SHA-256 of it, and scopes such as
// read:orders,invoices or admin:*. A line that begins with # is a comment. Its errors
// name the line, and show nothing of a token. A file that other users can read is an error
// that names the chmod.
func ReadTokens(file string) (Tokens, error) {
	text, err := private.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("serve: read tokens: %w", err)
	}
	tokens, err := ParseTokens(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("serve: read tokens: %s: %w", file, err)
	}
	return tokens, nil
}

// ParseTokens is ReadTokens of a text.
func ParseTokens(text io.Reader) (Tokens, error) {
	var all Tokens
	lines := bufio.NewScanner(text)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		t, err := parseToken(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		for _, other := range all {
			if other.Hash == t.Hash {
				return nil, fmt.Errorf("line %d: the token is that of %s", n, other.Name)
			}
		}
		all = append(all, t)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("there is no token in it")
	}
	return all, nil
}

func parseToken(fields []string) (Token, error) {
	if len(fields) < 3 {
		return Token{}, errors.New("write NAME TOKEN SCOPE:TOPIC..., such as: shop 0123456789abcdef publish:orders")
	}
	t := Token{Name: fields[0], Hash: sha256.Sum256([]byte(fields[1])), Scopes: map[Scope][]string{}}
	if digits, hashed := strings.CutPrefix(fields[1], "sha256:"); hashed {
		hash, err := hex.DecodeString(digits)
		if err != nil || len(hash) != sha256.Size {
			return Token{}, errors.New("sha256: is followed by 64 hexadecimal digits (printf %s TOKEN | sha256sum)")
		}
		if t.Hash = [sha256.Size]byte(hash); ofNothing(t.Hash) {
			return Token{}, errors.New("it is the hash of an empty token: was a variable unset? (TOKEN=$(openssl rand -hex 24) makes a good one)")
		}
	} else if len(fields[1]) < minToken {
		return Token{}, fmt.Errorf("the token has fewer than %d characters (openssl rand -hex 24 makes a good one)", minToken)
	}
	for _, field := range fields[2:] {
		scope, topics, _ := strings.Cut(field, ":")
		if s := Scope(scope); s != Read && s != Publish && s != Admin || topics == "" {
			return Token{}, errors.New("a scope is read, publish or admin, and its topics: read:orders,invoices or admin:*")
		}
		for topic := range strings.SplitSeq(topics, ",") {
			if topic == "" || strings.Contains(strings.TrimSuffix(topic, "*"), "*") {
				return Token{}, errors.New("a topic is a name, * or a name's beginning and *")
			}
			t.Scopes[Scope(scope)] = append(t.Scopes[Scope(scope)], topic)
		}
	}
	return t, nil
}

// Allows reports whether the token grants a scope of a topic.
func (t *Token) Allows(scope Scope, topic string) bool {
	for _, has := range []Scope{scope, Admin} {
		for _, pattern := range t.Scopes[has] {
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
func (t Tokens) find(shown string) (found *Token) {
	if len(shown) < minToken {
		return nil
	}
	hash := sha256.Sum256([]byte(shown))
	for i := range t {
		if subtle.ConstantTimeCompare(hash[:], t[i].Hash[:]) == 1 {
			found = &t[i]
		}
	}
	return found
}

// everybody is the token of every request where the server has no tokens.
var everybody = &Token{Name: "everybody", Scopes: map[Scope][]string{Admin: {"*"}}}

// token is whose request it is, nil if no token, or a wrong one, is shown.
func (s *Server) token(r *http.Request) *Token {
	if len(s.options.Tokens) == 0 {
		return everybody
	}
	kind, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") {
		shown = ""
	}
	return s.options.Tokens.find(strings.TrimSpace(shown))
}

// loopbackHost reports whether a request without tokens was meant for this machine: a name
// that a stranger's page resolves to 127.0.0.1 (DNS rebinding) was not.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
