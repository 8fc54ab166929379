// Command movie records docs/demo.svg: two terminals in which mqnotify really runs. The
// typing is made up; what the commands print, and when, is not. It needs mqnotify and
// mysql on the PATH, a database shop with an empty topic orders that ~/.my.cnf leads to, and
// its DSN in MQNOTIFY_DSN.
//
//	go -C docs run ./movie demo.svg
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"
)

// scenes are what is typed, and in which of the two terminals.
var scenes = []scene{
	{terminal: 0, text: "mqnotify consume orders --group mailer", until: "msg=waiting"},
	{terminal: 1, text: "mqnotify produce orders 'hello'", then: `"hello"`},
	{terminal: 1, text: `echo "INSERT INTO orders (payload) VALUES ('from SQL')" | mysql shop`, then: `"from SQL"`},
	{terminal: 1, text: "mqnotify status orders"},
}

const (
	perKey = 45 * time.Millisecond  // typing
	pause  = 900 * time.Millisecond // before the next command
	rest   = 5 * time.Second        // at the end, before it begins again
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "movie:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("name the FILE to write")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	lines, end, err := record(ctx, scenes)
	if err != nil {
		return err
	}
	var picture bytes.Buffer
	if err := draw(&picture, lines, end+rest); err != nil {
		return err
	}
	return os.WriteFile(args[0], picture.Bytes(), 0o644)
}
