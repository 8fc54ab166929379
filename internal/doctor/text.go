package doctor

import (
	"context"
	"fmt"
)

// text reports whether text with letters of any kind reaches the server as it is and comes back, over the pool and over a
// session. Each connection sets utf8mb4; something between that changes it would damage every message.
func text(ctx context.Context, e *exam) ([]Result, error) {
	const sent = "é😀注"
	for _, over := range []struct {
		name string
		get  func(ctx context.Context, into any, query string, args ...any) error
	}{{"the pool's connections", e.db.Pool().GetContext}, {"a session", e.get}} {
		var got struct {
			Hex    string `db:"hex"`
			Back   string `db:"back"`
			Client string `db:"client"`
		}
		err := over.get(ctx, &got, "SELECT HEX(CONVERT(? USING utf8mb4)) AS hex, ? AS back, @@character_set_client AS client", sent, sent)
		if err != nil {
			return nil, err
		}
		if got.Hex != fmt.Sprintf("%X", sent) || got.Back != sent {
			return []Result{problem("let nothing between here and the server set a character set (init_connect, a proxy): mqnotify sets utf8mb4",
				"text is damaged on its way: over %s the server reads it in the character set %s", over.name, got.Client)}, nil
		}
	}
	return []Result{ok("text of any language arrives as it was sent (utf8mb4)")}, nil
}
