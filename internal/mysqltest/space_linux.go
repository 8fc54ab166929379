package mysqltest

import "golang.org/x/sys/unix"

// freeSpace returns how many bytes are free for the user in the folder's file system. It fails when the user
// may not write there.
func freeSpace(dir string) (uint64, error) {
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return 0, err
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	return stat.Bavail * uint64(stat.Bsize), nil
}
