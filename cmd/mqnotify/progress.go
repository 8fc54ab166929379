package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/mqnotify/mqnotify/bridge"
)

// progressEvery is how often progress is logged where there is no terminal.
const progressEvery = 10 * time.Second

// progress shows how far a backlog is: a bar on a terminal, lines of the log elsewhere.
// It is used by one goroutine at a time.
type progress struct {
	app   *app
	topic string
	bar   *progressbar.ProgressBar // nil until there is a backlog, and without a terminal
	draws bool                     // stderr is a terminal
	last  time.Time                // when it was logged; the first page is at once
	said  bool                     // that there is a backlog
	done  bool                     // it is caught up
}

func (a *app) newProgress(topic string, draws bool) *progress {
	return &progress{app: a, topic: topic, draws: draws}
}

// drawsProgress reports whether a bar can be shown.
func (a *app) drawsProgress() bool { return isTerminalOut(a.err) && a.logging.format != formatJSON }

func isTerminalOut(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// report is for bridge.Options.Report.
func (p *progress) report(now bridge.Progress) {
	switch {
	case p.done:
	case !now.Backlog():
		p.done = true
		p.end()
		if p.said {
			p.log("the backlog is done", now)
		}
	case p.draws:
		p.draw(now)
	case time.Since(p.last) >= progressEvery:
		p.log("backlog", now)
	}
}

func (p *progress) log(message string, now bridge.Progress) {
	p.last, p.said = time.Now(), true
	ctx := context.Background()
	p.app.log.InfoContext(ctx, message, "topic", p.topic, "sent", now.Sent, "refused", now.Buried, "id", now.ID, "head", now.Head,
		"percent", fmt.Sprintf("%.1f", percent(now)), "rows_per_second", int(now.Rate()), "left", now.Left.Round(time.Second))
}

// percent is of ids, which are more than rows.
func percent(now bridge.Progress) float64 {
	if now.Head <= now.From {
		return 100
	}
	return min(100, 100*float64(now.ID-now.From)/float64(now.Head-now.From))
}

func (p *progress) draw(now bridge.Progress) {
	p.said = true
	if p.bar == nil {
		p.bar = p.app.newBar(int64(now.Head-now.From), p.topic)
	}
	_ = p.bar.Set64(int64(now.ID - now.From)) // what a terminal can't show is not the bridge's failure
}

// newBar is a bar on the terminal for so many rows.
func (a *app) newBar(rows int64, description string) *progressbar.ProgressBar {
	return progressbar.NewOptions64(rows,
		progressbar.OptionSetWriter(a.stderr),
		progressbar.OptionSetDescription(description),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionShowIts(), progressbar.OptionSetItsString("rows"),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
}

// end leaves the terminal's line to the next writer.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Exit() // as above
		p.app.note("\n")
		p.bar = nil
	}
}
