package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/mqnotify/mqnotify/bridge"
)

// progressEvery is how often progress is logged if stderr is no terminal.
const progressEvery = 10 * time.Second

// progress shows how far a bridge has sent its backlog: a bar on a terminal, else log lines.
type progress struct {
	mu    sync.Mutex // two goroutines call report and waits
	app   *app
	topic string
	bar   *progressbar.ProgressBar // nil until there is a backlog, and if stderr is no terminal
	draws bool                     // stderr is a terminal
	last  time.Time                // of the last log line
	said  bool                     // a backlog was shown
	done  bool                     // the backlog is sent
	held  bool                     // the bar shows the id that the rows wait for
}

func (a *app) newProgress(topic string, draws bool) *progress {
	return &progress{app: a, topic: topic, draws: draws}
}

// drawsProgress reports whether to show a bar: stderr is a terminal, and logs are text.
func (a *app) drawsProgress() bool { return isTerminal(a.err) && a.logging.format != formatJSON }

// isTerminal reports whether a stream of the process is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// report implements bridge.Options.Report.
func (p *progress) report(now bridge.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held {
		p.held = false
		p.bar.Describe(p.topic)
	}
	switch {
	case p.done:
	case now.ID >= now.Head:
		p.done = true
		p.clear()
		if p.said {
			p.log("the backlog is done", now)
		}
	case p.draws:
		p.draw(now)
	case time.Since(p.last) >= progressEvery:
		p.log("backlog", now)
	}
}

// waits implements consumer.Options.Waiting: the bar shows the id that the rows wait for. Without a bar, the consumer's own log
// line suffices.
func (p *progress) waits(id uint64, most time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar == nil {
		return
	}
	p.held = true
	text := fmt.Sprintf("%s: waits for id %d", p.topic, id)
	if most > 0 {
		text += fmt.Sprintf(", at most %v", most.Round(time.Second))
	}
	p.bar.Describe(text)
}

func (p *progress) log(message string, now bridge.Progress) {
	p.last, p.said = time.Now(), true
	ctx := context.Background()
	p.app.log.InfoContext(ctx, message, "topic", p.topic, "sent", now.Sent, "refused", now.Dead, "id", now.ID, "head", now.Head,
		"percent", fmt.Sprintf("%.1f", percent(now)), "rows_per_second", rate(now), "left", now.Left.Round(time.Second))
}

// rate returns the messages sent per second.
func rate(now bridge.Progress) int {
	return int(float64(now.Sent) / max(now.Elapsed, time.Nanosecond).Seconds())
}

// percent returns how far the bridge is through the backlog's range of ids. The range may have gaps, so it is not the share of rows.
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
	_ = p.bar.Set64(int64(now.ID - now.From)) // the bridge goes on even if the terminal can't show the bar
}

// newBar returns a progress bar that is full at rows.
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

// end removes the bar, so that the next output begins on a line of its own.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// clear is end for a caller that holds mu.
func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Exit() // as above
		p.app.note("\n")
		p.bar, p.held = nil, false
	}
}
