package schema

// Newest returns the number of the newest migration. After Init it is the largest version in VersionTable.
func Newest() (int, error) {
	all, err := migrations()
	if err != nil {
		return 0, err
	}
	return all[len(all)-1].version, nil
}
