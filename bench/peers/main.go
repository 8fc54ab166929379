// Peers runs the same work over mqnotify and what a user would pick instead, side by side on
// private servers, and writes ../../docs/benchmarks.md and its plots:
//
//	go -C bench/peers run .
//
// It takes forty minutes, and a quiet machine. It is a module of its own, so that nobody who uses mqnotify downloads
// its peers. PostgreSQL is left out where it is not installed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

const defaultServer = "mysql-9.7"

// settings are the command's flags.
type settings struct {
	server, only, docs string
	short              bool
}

func main() {
	log.SetFlags(log.Ltime)
	var s settings
	flag.StringVar(&s.server, "server", defaultServer, "the `name` of the server, as the tests name it")
	flag.StringVar(&s.only, "only", "", "peers with this in their name alone; prints, and writes no page")
	flag.StringVar(&s.docs, "docs", filepath.Join("..", "..", "docs"), "the `folder` for the page and its plots")
	flag.BoolVar(&s.short, "short", false, "a little of each, in seconds: the figures mean nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	_, err := run(ctx, s)
	stop()
	if err != nil {
		log.Fatalf("peers: %v", err)
	}
}

// run measures, and writes the page.
func run(ctx context.Context, s settings) (results []*result, err error) {
	a := usual
	if s.short {
		a = short
	}
	f, err := openField(ctx, s.server, func(p *peer) bool {
		return p.each <= a.slowest && strings.Contains(p.name, s.only)
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	results, err = measure(ctx, f.peers, a, func(what, peer string) { log.Printf("%s: %s", what, peer) })
	if err != nil {
		return nil, err
	}
	if s.only != "" {
		for _, r := range results {
			fmt.Printf("%s %+v\n", r.peer.name, *r)
		}
		return results, nil
	}
	return results, write(s.docs, s, a, f, results)
}
