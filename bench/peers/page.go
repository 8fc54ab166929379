package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/mqnotify/mqnotify/internal/bench"
)

// write writes the page and its plot.
func write(folder string, s settings, a amounts, f *field, results []*result) error {
	var figures []bench.Figure
	for _, r := range results {
		figure := r.latency50()
		figure.Idle = &r.idle
		if r.peer.ours {
			figure.Floor = "a full line"
		}
		figures = append(figures, figure)
	}
	if err := bench.Plot(filepath.Join(folder, "benchmarks.svg"), figures); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "benchmarks.md"), []byte(page(s, a, f, results)), 0o644)
}

func (r *result) latency50() bench.Figure { return bench.NewFigure(r.peer.name, "ms", r.latencies) }

// rate is the median.
func rate(turns []float64) float64 { return bench.NewFigure("", "", turns).Median }

// table returns a Markdown table with a row for each result.
func table(results []*result, head string, row func(r *result) []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", head, strings.Repeat("---|", strings.Count(head, "|")+1))
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s |\n", r.peer.name, strings.Join(row(r), " | "))
	}
	return b.String()
}

// digits formats a number with three significant digits, and commas between thousands.
func digits(x float64) string {
	switch {
	case x >= 1000:
		return message.NewPrinter(language.English).Sprintf("%d", int(x/100+0.5)*100)
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

func page(s settings, a amounts, f *field, results []*result) string {
	latency := table(results, "latency, ms | p50 | p99 | max | messages", func(r *result) []string {
		l := r.latency50()
		return []string{digits(l.Median), digits(l.P99), digits(l.Max), fmt.Sprint(len(l.Samples))}
	})
	idle := table(results, "statements a second, idle | one listener | each further one", func(r *result) []string {
		return []string{digits(r.idle), digits(r.each)}
	})
	rates := table(results, "rows a second | published in hundreds | backlog read by a new group", func(r *result) []string {
		if !r.peer.keeps {
			return []string{digits(rate(r.publish)), "nothing is kept"}
		}
		return []string{digits(rate(r.publish)), digits(rate(r.read))}
	})
	late := table(results, "late commits | lost | rows behind waited", func(r *result) []string {
		return []string{fmt.Sprintf("%d of %d", r.lost, r.late), fmt.Sprintf("%d of %d", r.held, r.late)}
	})
	command := "go -C bench/peers run ."
	if s.server != defaultServer {
		command += " -server " + s.server
	}
	command = "<!-- not run: it measures for a long while -->\n```sh\n" + command + "\n```" // docs/run_test.go runs the pages
	return fmt.Sprintf(`# Benchmarks

This page compares mqnotify with other tools: the same work in one run, on private servers of one machine. It is written by

%s

on %s, on %s%s. No server waits for a disk
(innodb_flush_log_at_trx_commit=2, fsync=off). [Measurements](measurements.md) compare it with bare statements.

*wake trigger*: a trigger on the table wakes the consumer, whatever program inserts. *mqnotify_wake*: the table has no trigger, and the producer calls a procedure
after its commit. The server has no binary log. *then a read*: the notification is a hint to read the rows above the last id. *with the message*: a message sent while no process
listens is lost.
River has no released driver for MySQL.
%s
## From the publish to the handler

From the call of Publish to the call of the handler, at random times between two polls.

%s
![distributions, and latency against idle statements](benchmarks.svg)

## What waiting costs

The server's count (Questions, pg_stat_statements) over %v for mqnotify, and over %v for the others. Each further listener has its own group and
connections. Pings are not statements. Without a trigger mqnotify polls every second for rows that no producer announces.

%s
## Rows a second

Medians of three turns, for up to %v. Only mqnotify and watermill-sql store an offset.

%s
## Transactions that commit late

A transaction with a larger id commits first.

%s
%s`, command, time.Now().UTC().Format(time.DateOnly), strings.Join(append(machine(), f.versions...), ", "), load(),
		notes(f), latency, a.sleep, a.window, idle, a.rates, rates, late, verdict(results))
}

func notes(f *field) string {
	var b strings.Builder
	for _, note := range f.notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	return b.String()
}

// machine describes what the figures depend on.
func machine() []string {
	words := []string{fmt.Sprintf("%d cores", runtime.NumCPU())}
	if model := proc("cpuinfo", "model name"); model != "" {
		words[0] += " (" + model + ")"
	}
	var memory int64 // KiB
	if _, err := fmt.Sscan(proc("meminfo", "MemTotal"), &memory); err == nil {
		words = append(words, fmt.Sprintf("%.1f GiB of memory", float64(memory)/(1<<20)))
	}
	words = append(words, runtime.GOOS+"/"+runtime.GOARCH, runtime.Version())
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			switch module.Path {
			case "github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/jackc/pgx/v5", "github.com/go-sql-driver/mysql":
				name := strings.TrimPrefix(module.Path, "github.com/")
				words = append(words, name+" "+module.Version)
			}
		}
	}
	return words
}

// proc returns what follows the first such name in a file of /proc, or "" if it is not there.
func proc(file, name string) string {
	text, err := os.ReadFile(filepath.Join("/proc", file))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// load returns the machine's load, if it is known.
func load() string {
	average, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(average))
	if err != nil || len(fields) < 2 {
		return ""
	}
	return ", with a load of " + fields[1] + " at the end"
}
