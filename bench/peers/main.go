// Peers runs the same work with mqnotify and with its alternatives, one after the other on
// private servers, and writes ../../docs/internals/benchmarks.md and its plots:
//
//	go -C bench/peers run .
//
// It takes half an hour, and needs a quiet machine. It is a module of its own, so that users of mqnotify do not download
// its peers. It leaves out PostgreSQL where that is not installed.
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
	"slices"
	"strings"
)

const defaultServer = "mysql-9.7"

// settings are the command's flags.
type settings struct {
	server, only, docs string
	short, latency     bool
}

func main() {
	log.SetFlags(log.Ltime)
	var s settings
	flag.StringVar(&s.server, "server", defaultServer, "the `name` of the server, as the tests name it")
	flag.StringVar(&s.only, "only", "", "peers with one of these `names` alone, or parts of them, with | between; prints, and writes no page")
	flag.BoolVar(&s.latency, "latency", false, "the latency alone; prints, and writes no page")
	flag.StringVar(&s.docs, "docs", filepath.Join("..", "..", "docs", "internals"), "the `folder` for the page and its plots")
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
		wanted := func(part string) bool { return strings.Contains(p.name, part) }
		return p.each <= a.slowest && slices.ContainsFunc(strings.Split(s.only, "|"), wanted)
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	measured := steps
	if s.latency {
		measured = steps[:1]
	}
	results, err = measure(ctx, f.peers, a, measured, func(what, peer string) { log.Printf("%s: %s", what, peer) })
	if err != nil {
		return nil, err
	}
	if s.only != "" || s.latency {
		for _, r := range results {
			fmt.Println(r)
		}
		return results, nil
	}
	return results, write(s.docs, s, a, f, results)
}
