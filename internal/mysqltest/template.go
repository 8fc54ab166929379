package mysqltest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"time"
)

// templateVersion is part of a template's name. Change it when templates are made in another way.
const templateVersion = "3"

// cacheFolder returns the folder of the unpacked servers and of the templates.
func cacheFolder() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("mysqltest: no cache folder: %w", err)
	}
	return filepath.Join(dir, "mqnotify"), nil
}

// template returns the initialised data folder that instances with these flags are copied from. It is made once per machine:
// the first process makes it under a lock, and other processes wait.
func (s *Server) template(flags []string) (string, error) {
	flags = s.lasting(flags)
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "templates")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", fmt.Errorf("mysqltest: make the cache folder: %w", err)
	}
	key := sha256.Sum256([]byte(templateVersion + "\x00" + s.binary + "\x00" + s.version + strings.Join(flags, "\x00")))
	path := filepath.Join(cache, fmt.Sprintf("%x", key[:8]))

	unlock, err := lockFile(path+".lock", true)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	// The folder is made under another name and renamed when complete, so that a killed test leaves no incomplete template.
	draft := path + ".draft"
	if err := os.RemoveAll(draft); err != nil {
		return "", fmt.Errorf("mysqltest: remove an unfinished data folder: %w", err)
	}
	if err := s.initialise(draft, flags); err != nil {
		return "", errors.Join(err, os.RemoveAll(draft))
	}
	if err := os.Rename(draft, path); err != nil {
		return "", fmt.Errorf("mysqltest: keep the data folder: %w", err)
	}
	return path, nil
}

// SystemUser is an account without a password that has the privilege SYSTEM_USER, as root has on most MySQL servers. The tests'
// root lacks it: only sessions with SYSTEM_USER can end a statement of a session that has it, so a test that works as such a
// root would not show what other accounts meet. MariaDB does not have the account.
const SystemUser = "system"

// systemAccount has a statement on each line.
const systemAccount = `CREATE USER 'system'@'localhost';
GRANT ALL ON *.* TO 'system'@'localhost' WITH GRANT OPTION;
REVOKE SYSTEM_USER ON *.* FROM 'root'@'localhost';
`

// lasting returns those flags that a data folder must be made with and can't change later.
func (s *Server) lasting(flags []string) (lasting []string) {
	for _, flag := range flags {
		if !s.mariadb && strings.HasPrefix(flag, "--lower-case-table-names=") {
			lasting = append(lasting, flag)
		}
	}
	return lasting
}

// initialise makes a data folder whose root account has no password.
func (s *Server) initialise(dir string, flags []string) error {
	var name string
	var args []string
	small := []string{"--innodb-redo-log-capacity=" + redoSize, "--innodb-doublewrite=OFF"} // small, because every instance copies the template
	if s.mariadb {
		small = []string{"--innodb-log-file-size=" + redoSize, "--innodb-undo-tablespaces=0"}
	}
	small = append(small, flags...)
	switch script := s.initScript(); {
	case script != "":
		name, args = script, append([]string{dir}, small...)
	case s.mariadb:
		name, args = "mariadb-install-db", []string{
			"--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db",
			"--datadir=" + dir,
		}
	default:
		name, args = s.binary, []string{"--no-defaults", "--initialize-insecure", "--datadir=" + dir}
	}
	if s.initScript() == "" {
		args = append(args, small...)
		account, err := user.Current()
		if err != nil {
			return fmt.Errorf("mysqltest: find the user's name: %w", err)
		}
		args = append(args, "--user="+account.Username)
	}
	if !s.mariadb {
		accounts := dir + ".sql"
		if err := os.WriteFile(accounts, []byte(systemAccount), 0o644); err != nil {
			return fmt.Errorf("mysqltest: %w", err)
		}
		defer func() { _ = os.Remove(accounts) }()
		args = append(args, "--init-file="+accounts)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, name, args...)
	command.SysProcAttr = processAttributes()
	command.Env = append(os.Environ(), "TMPDIR="+filepath.Dir(dir)) // see the flag --tmpdir
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("mysqltest: make a data folder for %s with %s: %w\n%s", s.name, name, err, tail(out))
	}
	return nil
}

// initScript returns the path of the script that scripts/unpack-server has written next to an unpacked server, or "". The
// binary of such a server is a wrapper that adds the flags for its place. initScript looks for the unpacked folder root as
// well, because /usr/sbin of a system has another program init.
func (s *Server) initScript() string {
	dir := filepath.Dir(s.binary)
	for _, name := range []string{"root", "init"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return ""
		}
	}
	return filepath.Join(dir, "init")
}

// tail returns the end of a server's output, which says why the server ended.
func tail(out []byte) []byte {
	const most = 4000
	return out[max(0, len(out)-most):]
}
