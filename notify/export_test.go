package notify

// CommitUser is for the tests of commits.
type CommitUser = commitUser

func (db *DB) Commits() *CommitUser { return db.commits() }

func (u *commitUser) Close() { u.close() }
