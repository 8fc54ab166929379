package supervisor

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// executable returns the path of this program, even if its file was replaced or deleted.
func executable() (string, error) {
	const self = "/proc/self/exe"
	if _, err := os.Stat(self); err == nil {
		return self, nil
	}
	return os.Executable()
}

// become makes this process the parent of orphans among its descendants.
func become() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // if it fails, the tree is the command's group
	// The name protects the process that ends the commands from a killall of mqnotify.
	_ = os.WriteFile("/proc/self/comm", []byte("supervisor"), 0)
}

// attributes makes a group for the command, and makes the command end with its supervisor.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// replace makes descriptor to a copy of descriptor from.
func replace(from, to int) error { return unix.Dup3(from, to, 0) }

// descendants returns the children of this process, and theirs, and so on.
func descendants() ([]int, error) {
	families, err := families()
	if err != nil {
		return nil, err
	}
	found := families[os.Getpid()]
	for i := 0; i < len(found); i++ {
		found = append(found, families[found[i]]...)
	}
	return found, nil
}

// children returns the children of this process: the command, and orphans.
func children() []int {
	families, _ := families() // nil without /proc
	return families[os.Getpid()]
}

// families returns the children of each process of the system.
func families() (map[int][]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	families := make(map[int][]int)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // not a process
		}
		if parent, ok := parentOf(entry.Name()); ok {
			families[parent] = append(families[parent], pid)
		}
	}
	return families, nil
}

// parentOf returns the parent of a process, unless the process has ended.
func parentOf(pid string) (int, bool) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, false
	}
	// The format is: pid (name) state parent ... The name may contain any character.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return parent, err == nil
}
