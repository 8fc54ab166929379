package mysqltest

// Folder returns a folder of this test process for files that several tests share, such as a program that they run.
// It is removed together with the process's servers.
func Folder() (string, error) { return home.folder() }

// folder returns the home folder, and makes it at its first use.
func (h *homeFolder) folder() (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.path == "" {
		if err := h.open(); err != nil {
			return "", err
		}
	}
	return h.path, nil
}
