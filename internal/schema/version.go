package schema

// Newest is the number of the newest migration: the version that Init leaves a
// database at, the largest in VersionTable.
func Newest() (int, error) {
	all, err := migrations()
	if err != nil {
		return 0, err
	}
	return all[len(all)-1].version, nil
}
