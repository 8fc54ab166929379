package dsn

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

const (
	// maxIncludes is how deep files may include one another, as in mysql(1).
	// A file that includes itself reaches this depth and gets an error.
	maxIncludes = 10
	// maxLine is far more than any option needs; mysql(1) accepts 4096 bytes.
	maxLine = 1 << 20
	// space has the characters of the servers' isspace().
	space = " \t\v\f\r\n"
)

// option is one line of an option file: name=value, or a name alone.
type option struct {
	name     string // in lower case, with - for _, and without loose-
	value    string // without quotes, escapes resolved
	hasValue bool
	file     string
	line     int
}

// errorf returns an error with the place of the option. Never pass it the value: if the line
// lacks a quote or a name, the value may be or contain a password.
func (o option) errorf(format string, args ...any) error {
	return &lineError{fmt.Sprintf("%s:%d: ", o.file, o.line) + fmt.Sprintf(format, args...)}
}

// lineError is an error that names the file and the line it comes from. It wraps
// no error: a missing included file must not look like a missing file
// that the user named, which callers may accept (errors.Is fs.ErrNotExist).
type lineError struct{ text string }

func (e *lineError) Error() string { return e.text }

// optionFile reads the option files of MySQL and MariaDB (my.cnf). They differ from
// the INI files that existing parsers read: a # ends a value in the
// middle of a line unless it is quoted, \s is a space, a group may occur twice,
// the order of options counts across groups, and files include files.
// The tests compare this reader with my_print_defaults.
type optionFile struct {
	groups  []string // the groups to read, in lower case
	options []option // the options in the order of the files
}

// read appends the options of the file at path, and of the files that it includes.
func (f *optionFile) read(path string, depth int) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	if err := checkMode(file); err != nil {
		return err
	}

	here := option{file: path}
	group := ""
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		here.line++
		line := lines.Text()
		if here.line == 1 {
			line = strings.TrimPrefix(line, "\ufeff") // some editors on Windows write a byte order mark
		}
		if strings.ContainsRune(line, 0) {
			return here.errorf("there is a NUL character: save the file as plain text in UTF-8")
		}
		line = strings.Trim(line, space)
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case line[0] == '!':
			if err := f.include(here, line, depth); err != nil {
				return err
			}
		case line[0] == '[':
			name, _, closed := strings.Cut(line[1:], "]")
			if !closed {
				return here.errorf("the name of a group lacks its ]")
			}
			group = strings.ToLower(strings.TrimRight(name, space))
		case group == "":
			return here.errorf("there is an option in front of the first group: begin with a line [client]")
		default:
			f.add(here, group, line)
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		here.line++
		return here.errorf("the line is longer than %d bytes", maxLine)
	} else if err != nil {
		return err
	}
	return nil
}

// checkMode refuses a file that every user may write, because a user who changes it can
// redirect the password to another server. mysql(1) warns, and skips the file.
func checkMode(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if runtime.GOOS != "windows" && info.Mode().IsRegular() && info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("every user can change %s: run chmod o-w on it", file.Name())
	}
	return nil
}

// add appends the option in line if its group is one of those to read.
func (f *optionFile) add(here option, group, line string) {
	if !slices.Contains(f.groups, group) {
		return
	}
	name, value, hasValue := strings.Cut(cutComment(line), "=")
	name = strings.ToLower(strings.ReplaceAll(strings.TrimRight(name, space), "_", "-"))
	here.name = strings.TrimPrefix(name, "loose-")
	here.value, here.hasValue = unquote(strings.Trim(value, space)), hasValue
	f.options = append(f.options, here)
}

// include follows !include FILE and !includedir DIR; of a folder it reads the
// *.cnf files by name. A path is relative to the working directory, as in
// mysql(1). mysql(1) skips a missing file; here it is an error,
// because the password may be in it.
func (f *optionFile) include(here option, line string, depth int) error {
	end := strings.IndexAny(line, space)
	if end < 0 {
		return here.errorf("there is no path behind !include or !includedir")
	}
	path := expandHome(strings.Trim(cutComment(line[end:]), space))
	paths := []string{path}
	switch line[:end] {
	case "!include":
	case "!includedir":
		entries, err := os.ReadDir(path) // sorted
		if err != nil {
			return here.errorf("include: %v", err)
		}
		paths = nil
		for _, entry := range entries {
			if filepath.Ext(entry.Name()) == ".cnf" && !entry.IsDir() {
				paths = append(paths, filepath.Join(path, entry.Name()))
			}
		}
	default:
		return here.errorf("a line that begins with ! has to be !include FILE or !includedir DIR")
	}
	if depth == maxIncludes {
		return here.errorf("more than %d files include one another: does one include itself?", maxIncludes)
	}
	for _, path := range paths {
		if err := f.read(path, depth+1); err != nil {
			if errors.As(err, new(*lineError)) {
				return err
			}
			return here.errorf("include: %v", err)
		}
	}
	return nil
}

func expandHome(path string) string {
	if rest, found := strings.CutPrefix(path, "~/"); found {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return path
}

// cutComment cuts line at the first # outside quotes. A quote may open anywhere,
// and need not be closed.
func cutComment(line string) string {
	var quote byte
	escaped := false
	for i := range len(line) {
		c := line[i]
		switch {
		case (c == '"' || c == '\'') && !escaped:
			switch quote {
			case 0:
				quote = c
			case c:
				quote = 0
			}
		case c == '#' && quote == 0:
			return line[:i]
		}
		escaped = quote != 0 && c == '\\' && !escaped
	}
	return line
}

var unescape = map[byte]byte{
	'b': '\b', 't': '\t', 'n': '\n', 'r': '\r', 's': ' ', '\\': '\\', '"': '"', '\'': '\'',
}

// unquote removes the quotes if they enclose the whole value, and resolves
// escapes, which also count outside quotes. Before any other letter the
// backslash stays.
func unquote(value string) string {
	if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		value = value[1 : n-1]
	}
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] == '\\' && i+1 < len(value) {
			if c, found := unescape[value[i+1]]; found {
				b.WriteByte(c)
				i++
				continue
			}
		}
		b.WriteByte(value[i])
	}
	return b.String()
}
