package notify

// CommitUser is for the tests of commits.
type CommitUser = commitUser

func (db *DB) Commits() *CommitUser { return db.commits() }

func (u *commitUser) Close() { u.close() }

// DB is the gate's.
func (g *Gate) DB() *DB { return g.db }
