package dsn

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// grammar is testdata/grammar.cnf in the output of my_print_defaults of MySQL 9.7 and MariaDB 10.11
// (except loose-, _ and capitals, which the programs resolve themselves).
var grammar = []string{
	"--user=root", "--p0=a#b", "--p1=a", `--p2=a\`, `--p3=a"b`, "--p4=it''s", `--p5="x" y`,
	"--p6= lead  \t\\q\\n", "--p7= x ", "--p8=a;b", "--p9=a ; b", "--p10='abc", `--p11="a # b' # "c`,
	"--p12=", "--p13", "--p14=quo'te", `--p15=\`, `--p16=abc\`,
	"--p17=don't # no comment, the quote is open", `--p18=don't " x # neither`, "--p19=a'b", "--p20=a'b",
	`--p21="a\"b" # c`, "--p22=a=b = c", "--p23 with space=v", "--p24=", `--p25="`, "--p-26-x=1",
	`--p27=a"b#c"d`, "--p28=x", "--p29=größe\ttab", "--p30=1", "--p31", "--p32=\b.", "--p33=1", "--p34=1",
	"--again=2", "--upper=3", "--m1=1", "--included=1", "--m2=the group goes on",
	"--in-a=1", "--in-b=1", "--m3=and on", "--last=1",
}

func TestOptionFileGrammar(t *testing.T) {
	file := optionFile{groups: []string{"client", "client-server", "mysql"}}
	require.NoError(t, file.read("testdata/grammar.cnf", 0))
	assert.Equal(t, grammar, printed(file.options))
}

// printed writes the options in the form of my_print_defaults.
func printed(options []option) []string {
	var lines []string
	for _, o := range options {
		line := "--" + o.name
		if o.hasValue {
			line += "=" + o.value
		}
		lines = append(lines, line)
	}
	return lines
}

// TestOptionFileGrammarIsMySQLs shows that the expectation above is the servers' own.
func TestOptionFileGrammarIsMySQLs(t *testing.T) {
	program, err := exec.LookPath("my_print_defaults")
	if err != nil {
		t.Skip("no my_print_defaults here to compare with: install mariadb-client or mysql-client")
	}
	out, err := exec.CommandContext(t.Context(), program, "--defaults-file=testdata/grammar.cnf",
		"client", "client-server", "mysql").CombinedOutput()
	require.NoError(t, err, "%s", out)

	var got []string
	for line := range strings.Lines(string(out)) {
		name, value, hasValue := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
		name = strings.Replace(name, "--loose-", "--", 1)
		if hasValue {
			name += "=" + value
		}
		got = append(got, name)
	}
	assert.Equal(t, grammar, got)
}

// write writes a file for a test and returns its path.
func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestOptionFileEscapesAndLineEnds(t *testing.T) {
	file := optionFile{groups: []string{"client"}}
	require.NoError(t, file.read(write(t, "my.cnf", "\ufeff[client]\r\na=\"x y \"\r\nb=1\\n2\\r3\r\nc=no line end"), 0))
	assert.Equal(t, []string{"--a=x y ", "--b=1\n2\r3", "--c=no line end"}, printed(file.options))
}

func TestOptionFileErrors(t *testing.T) {
	dir := t.TempDir()
	self := filepath.Join(dir, "self.cnf")
	require.NoError(t, os.WriteFile(self, []byte("[client]\na=1\n!includedir "+dir+"\n"), 0o600))

	for name, test := range map[string]struct{ content, want string }{
		"no group":       {"# c\npassword=s3cret\n", ":2: there is an option in front of the first group"},
		"open group":     {"[client\npassword=s3cret", ":1: the name of a group lacks its ]"},
		"NUL":            {"[client]\npassword=s3cret\x00", ":2: there is a NUL character"},
		"too long":       {"[client]\n#" + strings.Repeat("s3cret", 1<<18), ":2: the line is longer than 1048576 bytes"},
		"bad directive":  {"[client]\n!s3cret x", ":2: a line that begins with ! has to be !include FILE"},
		"no path":        {"[client]\n!include", ":2: there is no path behind !include"},
		"absent file":    {"\n\n!include /absent/my.cnf", ":3: include: open /absent/my.cnf: "},
		"absent folder":  {"!includedir /absent", ":1: include: open /absent: "},
		"includes a dir": {"!include /", ":1: include: read /: "},
		"cycle":          {"!include " + self, "self.cnf:3: more than 10 files include one another: does one include itself?"},
		"in an include":  {"!include " + write(t, "inner.cnf", "[client]\n[oops"), "inner.cnf:2: the name of a group"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, "my.cnf", test.content)
			_, err := FromDefaultsFile(path)
			require.Error(t, err)
			assert.Contains(t, err.Error(), test.want)
			if !strings.Contains(test.want, ".cnf:") {
				assert.Contains(t, err.Error(), "dsn: defaults file: "+path+":")
			}
			assert.NotContains(t, err.Error(), "s3cret")
		})
	}
}

func TestOptionFileMissing(t *testing.T) {
	_, err := FromDefaultsFile(filepath.Join(t.TempDir(), "absent.cnf"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "absent.cnf")

	for _, content := range []string{"!include /absent/my.cnf", "[client]\nssl-ca=/absent/ca.pem"} {
		_, err = FromDefaultsFile(write(t, "my.cnf", content))
		require.Error(t, err)
		assert.NotErrorIs(t, err, fs.ErrNotExist, "a file that is there must not pass for one that is not")
	}
}

func TestOptionFileRefusesWorldWritable(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such permission bits")
	}
	path := write(t, "my.cnf", "[client]\n")
	require.NoError(t, os.Chmod(path, 0o666))
	_, err := FromDefaultsFile(path)
	assert.ErrorContains(t, err, "every user can change "+path+": run chmod o-w on it")

	_, err = FromDefaultsFile(write(t, "outer.cnf", "!include "+path))
	assert.ErrorContains(t, err, "outer.cnf:1: include: every user can change "+path)

	require.NoError(t, os.Chmod(path, 0o664))
	_, err = FromDefaultsFile(path)
	assert.NoError(t, err)
}

func TestOptionFileIncludesFromHome(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	require.NoError(t, os.WriteFile(filepath.Join(home, "own.cnf"), []byte("[client]\na=1\n"), 0o600))
	file := optionFile{groups: []string{"client"}}
	require.NoError(t, file.read(write(t, "my.cnf", "!include ~/own.cnf # MariaDB's mysql wants no comment here\n"), 0))
	assert.Equal(t, []string{"--a=1"}, printed(file.options))
}
