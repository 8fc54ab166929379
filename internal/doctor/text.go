package doctor

import (
	"context"
	"fmt"
)

// text reports whether text in any script reaches the server and comes back unchanged, over the pool and over a session. Each connection
// sets utf8mb4. If a proxy or a server setting changes that, every message is damaged.
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
			return []Result{problem("let no setting or proxy (such as init_connect) change the character set: mqnotify sets utf8mb4",
				"text is damaged on its way: over %s the server reads it in the character set %s", over.name, got.Client)}, nil
		}
	}
	return []Result{ok("text of any language arrives unchanged (utf8mb4)")}, nil
}
