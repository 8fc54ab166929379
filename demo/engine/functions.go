package engine

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dolthub/go-mysql-server/sql"
	"github.com/dolthub/go-mysql-server/sql/expression"
	"github.com/dolthub/go-mysql-server/sql/types"
	vitess "github.com/dolthub/vitess/go/mysql"
)

// maxLockName is the longest name of a lock in MySQL, in characters.
const maxLockName = 64

// functions returns, by name, the SQL functions that the engine lacks, or that differ from MySQL's.
func functions(l *locks) map[string]sql.Function {
	ids := newShortIDs()
	return map[string]sql.Function{
		"get_lock": sql.Function2{Name: "get_lock", Fn: func(name, timeout sql.Expression) sql.Expression {
			return newCall("get_lock", types.Int8, l.getLock, name, timeout)
		}},
		"release_lock": sql.Function1{Name: "release_lock", Fn: func(name sql.Expression) sql.Expression {
			return newCall("release_lock", types.Int8, l.releaseLock, name)
		}},
		"is_used_lock": sql.Function1{Name: "is_used_lock", Fn: func(name sql.Expression) sql.Expression {
			return newCall("is_used_lock", types.Uint64, l.isUsedLock, name)
		}},
		"is_free_lock": sql.Function1{Name: "is_free_lock", Fn: func(name sql.Expression) sql.Expression {
			return newCall("is_free_lock", types.Int8, l.isFreeLock, name)
		}},
		"release_all_locks": sql.Function0{Name: "release_all_locks", Fn: func() sql.Expression {
			return newCall("release_all_locks", types.Uint64, l.releaseAllLocks)
		}},
		"uuid_short": sql.Function0{Name: "uuid_short", Fn: func() sql.Expression {
			return newCall("uuid_short", types.Uint64, ids.next)
		}},
	}
}

func (l *locks) getLock(ctx *sql.Context, args []any) (any, error) {
	name, err := lockName(ctx, args[0])
	if err != nil || args[1] == nil {
		return nil, err
	}
	seconds, _, err := types.Float64.Convert(ctx, args[1])
	if err != nil {
		return nil, err
	}
	// A limit of a year fits a Duration, and is as good as none.
	timeout := time.Duration(min(seconds.(float64), 366*24*3600) * float64(time.Second))
	got, err := l.acquire(ctx, ctx.Session.ID(), name, timeout)
	if err != nil {
		return nil, vitess.NewSQLError(1317, "70100", "Query execution was interrupted")
	}
	return oneIf(got), nil
}

func (l *locks) releaseLock(ctx *sql.Context, args []any) (any, error) {
	name, err := lockName(ctx, args[0])
	if err != nil {
		return nil, err
	}
	held, ours := l.release(ctx.Session.ID(), name)
	if !held {
		return nil, nil
	}
	return oneIf(ours), nil
}

func (l *locks) isUsedLock(ctx *sql.Context, args []any) (any, error) {
	name, err := lockName(ctx, args[0])
	if err != nil {
		return nil, err
	}
	if owner := l.owner(name); owner != 0 {
		return uint64(owner), nil
	}
	return nil, nil
}

func (l *locks) isFreeLock(ctx *sql.Context, args []any) (any, error) {
	name, err := lockName(ctx, args[0])
	if err != nil {
		return nil, err
	}
	return oneIf(l.owner(name) == 0), nil
}

func (l *locks) releaseAllLocks(ctx *sql.Context, _ []any) (any, error) {
	return uint64(l.releaseAll(ctx.Session.ID())), nil
}

// lockName returns the name, or MySQL's error for a name that cannot be one.
func lockName(ctx *sql.Context, value any) (string, error) {
	converted, _, err := types.LongText.Convert(ctx, value)
	if err != nil {
		return "", err
	}
	name, _ := converted.(string) // nil, for NULL, is as wrong as an empty name
	if name == "" || len([]rune(name)) > maxLockName {
		return "", vitess.NewSQLError(3057, "42000", "Incorrect user-level lock name")
	}
	return name, nil
}

// shortIDs makes the numbers of UUID_SHORT. No number comes twice, also after restarts, below a million numbers a second. Unlike MySQL's
// they stay below 2^53, because the engine compares larger numbers as floats.
type shortIDs struct{ last atomic.Uint64 }

func newShortIDs() *shortIDs {
	ids := &shortIDs{}
	ids.last.Store(uint64(time.Now().Unix()) << 20)
	return ids
}

func (ids *shortIDs) next(*sql.Context, []any) (any, error) { return ids.last.Add(1), nil }

func oneIf(b bool) int8 {
	if b {
		return 1
	}
	return 0
}

// call is a call of one of these functions in a statement.
type call struct {
	expression.NaryExpression
	name string
	typ  sql.Type
	do   func(*sql.Context, []any) (any, error)
}

func newCall(name string, typ sql.Type, do func(*sql.Context, []any) (any, error), args ...sql.Expression) sql.Expression {
	return &call{expression.NaryExpression{ChildExpressions: args}, name, typ, do}
}

func (f *call) Eval(ctx *sql.Context, row sql.Row) (any, error) {
	args := make([]any, len(f.ChildExpressions))
	for i, arg := range f.ChildExpressions {
		value, err := arg.Eval(ctx, row)
		if err != nil {
			return nil, err
		}
		args[i] = value
	}
	return f.do(ctx, args)
}

func (f *call) WithChildren(args ...sql.Expression) (sql.Expression, error) {
	if len(args) != len(f.ChildExpressions) {
		return nil, sql.ErrInvalidChildrenNumber.New(f, len(args), len(f.ChildExpressions))
	}
	return newCall(f.name, f.typ, f.do, args...), nil
}

func (f *call) String() string {
	args := make([]string, len(f.ChildExpressions))
	for i, arg := range f.ChildExpressions {
		args[i] = arg.String()
	}
	return fmt.Sprintf("%s(%s)", f.name, strings.Join(args, ", "))
}

func (f *call) Type() sql.Type       { return f.typ }
func (f *call) IsNullable() bool     { return true }
func (f *call) FunctionName() string { return f.name }
func (f *call) Description() string  { return f.name + ", as in MySQL" }

// IsNonDeterministic prevents the engine from calling the function in advance.
func (f *call) IsNonDeterministic() bool { return true }
