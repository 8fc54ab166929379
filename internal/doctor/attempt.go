package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/mqnotify/mqnotify/internal/server"
)

// attempts are the statements that one use of mqnotify ("produce") needs. They affect no row: the server checks privileges, and
// whether it is read-only, before it looks for rows.
type attempts struct {
	use        string
	statements []string
}

// try runs the statements. It returns the first refusal by the server, or else any other error as err.
func (e *exam) try(ctx context.Context, a attempts) (refusal, err error) {
	for _, statement := range a.statements {
		err := e.exec(ctx, statement)
		switch {
		case server.NoPrivilege(err), server.ReadOnly(err), server.Is(err, server.ErrNoSuchTable):
			return err, nil
		case err != nil:
			return nil, err
		}
	}
	return nil, nil
}

// judge tries every use. It returns the uses that work, and a warning for each remedy, with the uses that it repairs and the first
// refusal.
func (e *exam) judge(ctx context.Context, uses []attempts) (can []string, results []Result, err error) {
	var cannot []denial
	for _, a := range uses {
		refusal, err := e.try(ctx, a)
		switch {
		case err != nil:
			return nil, nil, err
		case refusal == nil:
			can = append(can, a.use)
			continue
		}
		remedy := remedyOfRefusal(refusal)
		at := slices.IndexFunc(cannot, func(d denial) bool { return d.remedy == remedy })
		if at < 0 {
			at = len(cannot)
			cannot = append(cannot, denial{refusal: refusal, remedy: remedy})
		}
		cannot[at].uses = append(cannot[at].uses, a.use)
	}
	for _, d := range cannot {
		results = append(results, warning(d.remedy, "this account can't %s: %s", strings.Join(d.uses, ", "), plain(d.refusal)))
	}
	return can, results, nil
}

// denial has the uses that fail for the same reason.
type denial struct {
	uses    []string
	refusal error
	remedy  string
}

func remedyOfRefusal(err error) string {
	switch {
	case server.ReadOnly(err):
		return "connect to the primary"
	case server.Is(err, server.ErrNoSuchTable):
		return "mqnotify init"
	}
	return grantsRemedy
}
