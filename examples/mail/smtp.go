package main

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/smtp"
	"net/textproto"
	"time"
)

const (
	from = "shop@example.com"
	// patience is how long the whole conversation with a mail server may take.
	patience = time.Minute
)

// sendError says what a failure means for the mail. If it is neither unknown nor permanent,
// the mail was not sent, and a later attempt may succeed.
type sendError struct {
	unknown   bool // it is unknown whether the mail was sent
	permanent bool // the server refuses the mail
	err       error
}

func (e *sendError) Error() string {
	if e.unknown {
		return fmt.Sprintf("no answer to the whole mail, it may have been sent: %v", e.err)
	}
	return e.err.Error()
}

func (e *sendError) Unwrap() error { return e.err }

// send gives a mail to the server. The id becomes its Message-ID, by which receivers can
// recognize a duplicate.
func send(ctx context.Context, server string, m mail, id string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", server)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // net/smtp takes no context
	defer func() { _ = conn.Close() }()
	whole := false
	err = speak(conn, m, id, &whole)
	if err == nil {
		return nil
	}
	if answer := (*textproto.Error)(nil); errors.As(err, &answer) {
		return &sendError{permanent: answer.Code >= 500, err: err}
	}
	return &sendError{unknown: whole, err: err}
}

// speak sends the mail. It sets whole while the server may have received all of the mail
// and has not answered yet.
func speak(conn net.Conn, m mail, id string, whole *bool) error {
	client, err := smtp.NewClient(conn, "localhost")
	if err != nil {
		return err
	}
	if err := client.Mail(from); err != nil {
		return err
	}
	if err := client.Rcpt(m.To); err != nil {
		return err
	}
	data, err := client.Data()
	if err != nil {
		return err
	}
	const format = "From: <%s>\r\nTo: <%s>\r\nSubject: %s\r\nMessage-ID: <%s@example.com>\r\n\r\nHello.\r\n"
	if _, err := fmt.Fprintf(data, format, from, m.To, mime.QEncoding.Encode("utf-8", m.Subject), id); err != nil {
		return err
	}
	*whole = true
	if err := data.Close(); err != nil {
		return err
	}
	*whole = false
	_ = client.Quit() // the mail is sent, even if this fails
	return nil
}
