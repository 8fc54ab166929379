package main

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// commandPatience is how long a running command may take after Ctrl-C.
const commandPatience = 30 * time.Second

type listenOptions struct {
	limit int
	json  bool
}

func newListen(a *app) *cobra.Command {
	var o listenOptions
	cmd := &cobra.Command{
		Use:   "listen NAME... [flags] [-- COMMAND ARGS...]",
		Short: "Print the notifications sent to names, or run a command for each",
		Long: `Prints the notifications that are sent to the NAMEs after listen has logged "listening", until
Ctrl-C or --limit: the time, the name and the payload on a line. A NAME is any text. If a name or
payload has control characters or is not UTF-8, listen prints it in quotes, with Go's escapes.

mqnotify notify sends notifications, and so does any program that inserts into the table
mqnotify_notification. If that table has its wake trigger, which mqnotify init makes, listen
receives a notification at its commit, otherwise up to a second later. After a lost connection
listen reconnects, and receives the notifications that were sent meanwhile. Notifications are
kept for an hour. listen warns if it missed any.

listen runs COMMAND for each notification, with MQNOTIFY_NAME and MQNOTIFY_PAYLOAD in its
environment and the payload on its stdin. It runs one COMMAND at a time; further notifications
wait. When COMMAND fails, listen logs it and goes on.

A COMMAND has ended when all processes of its process group have ended. When listen is killed,
all that COMMAND has started is ended, as with mqnotify lock.

After Ctrl-C the running COMMAND may take up to 30 s to finish.`,
		Example: `  mqnotify listen orders invoices
  mqnotify listen reload --limit 1 && ./read-the-config
  mqnotify listen customers -- ./sync-customers`,
		Args: andCommand(someNames("NAME")),
		RunE: func(cmd *cobra.Command, args []string) error {
			names, command := args, []string(nil)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				names, command = args[:dash], args[dash:]
			}
			return a.listen(cmd.Context(), o, names, command)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.limit, "limit", 0, "end after this many notifications; 0 is no limit")
	flags.BoolVar(&o.json, "json", false, "print a JSON object for each, with time, name, payload (payload_base64\nif it is not UTF-8), and missed if notifications before it were missed")
	a.registerInherit(cmd, "COMMAND")
	return cmd
}

func (a *app) listen(ctx context.Context, o listenOptions, names, args []string) error {
	switch {
	case o.limit < 0:
		return usagef("--limit %d: 0 or more", o.limit)
	case o.json && len(args) > 0:
		return usagef("--json is for printing, and a command has the payload in its environment: leave --json out")
	}
	receive := func(n notify.Notification) error { return a.printNotification(o, n) }
	if len(args) > 0 {
		if err := findCommand(args); err != nil {
			return err
		}
		receive = func(n notify.Notification) error {
			a.runForNotification(ctx, args, n)
			return nil
		}
	}
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	notifications, err := notify.Listen(ctx, db, names...)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // Ctrl-C is no failure
	case err != nil:
		return err
	}
	a.log.InfoContext(ctx, "listening", "names", names)
	err = a.receive(ctx, o, notifications, receive)
	cancel()
	for range notifications { // Listen closes the channel when its goroutines have ended
	}
	return ignoreBrokenPipe(err)
}

// receive calls f for each notification, until ctx ends or --limit is reached.
func (a *app) receive(ctx context.Context, o listenOptions, notifications <-chan notify.Notification, f func(notify.Notification) error) error {
	for count := 0; ctx.Err() == nil && (o.limit == 0 || count < o.limit); {
		n, open := <-notifications
		if !open {
			break
		}
		if n.Missed {
			a.log.WarnContext(ctx, "notifications were missed")
		}
		if n.ID == 0 && !o.json {
			continue
		}
		if err := f(n); err != nil {
			return err
		}
		if n.ID != 0 {
			count++
		}
	}
	return nil
}

func (a *app) printNotification(o listenOptions, n notify.Notification) error {
	if !o.json {
		text := n.Time.Format(timeFormat) + " " + oneLine(n.Name)
		if len(n.Payload) > 0 {
			text += " " + oneLine(string(n.Payload))
		}
		return writeAll(a.out, text+"\n")
	}
	type missed struct {
		Missed bool `json:"missed,omitempty"`
	}
	var shown any = missed{true} // without a notification
	if n.ID != 0 {
		shown = struct {
			Time string `json:"time"`
			Name string `json:"name"`
			shownPayload
			missed
		}{n.Time.Format(timeFormat), n.Name, showPayload(n.Payload), missed{n.Missed}}
	}
	return writeJSON(a.out, shown)
}

// oneLine returns the text, quoted if it is not UTF-8 or has control characters.
func oneLine(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return strconv.Quote(text)
	}
	return text
}

// runForNotification runs the command to its end. A command that fails does not end listen.
func (a *app) runForNotification(ctx context.Context, args []string, n notify.Notification) {
	longer, release := server.Linger(ctx, commandPatience)
	defer release()
	variables := []string{"MQNOTIFY_NAME=" + n.Name, "MQNOTIFY_PAYLOAD=" + string(n.Payload)}
	variables = slices.DeleteFunc(variables, func(v string) bool { return strings.ContainsRune(v, 0) }) // a variable can't contain a zero byte
	run := &command{args, killAfter, a}
	if err := run.run(longer, n.Payload, variables); err != nil {
		a.log.WarnContext(ctx, "the command failed", "name", n.Name, "error", err)
	}
}
