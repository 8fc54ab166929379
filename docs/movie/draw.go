package main

import (
	"encoding/xml"
	"io"
	"strings"
	"text/template"
	"time"
	"unicode/utf8"
)

// The picture's measures, in pixels.
const (
	width      = 860
	charWidth  = 7.23 // of the 12 px font, about: where another is used, textLength keeps it
	lineHeight = 18
	margin     = 14
	bar        = 26 // a terminal's title
)

var titles = [...]string{"terminal 1", "terminal 2"}

// draw writes the movie: each line appears at its time, and the movie starts again after the length.
// A viewer who prefers reduced motion sees the last picture.
func draw(to io.Writer, lines []line, length time.Duration) error {
	m := movie{Width: width, Seconds: length.Seconds()}
	y := 0
	for i, title := range titles {
		p := pane{Title: title, Y: y, TitleY: y + 17}
		row := y + bar + lineHeight
		for _, l := range lines {
			if l.terminal != i {
				continue
			}
			p.Lines = append(p.Lines, m.drawn(l, row, length))
			row += lineHeight
		}
		p.Height = row - y - lineHeight/2
		m.Panes = append(m.Panes, p)
		y += p.Height + 8
	}
	m.Height = y - 8
	return picture.Execute(to, m)
}

type movie struct {
	Width, Height, count int
	Seconds              float64
	Panes                []pane
}

type pane struct {
	Title             string
	Y, TitleY, Height int
	Lines             []drawn
}

// drawn is a line of the picture. Its times are percentages of the movie's length.
type drawn struct {
	ID, Y, Top, Keys   int
	Text               string
	Typed              bool
	Hidden, From, Till float64 // it is not there before From; it is typed until Till
	Length, Covered    float64
}

func (m *movie) drawn(l line, y int, length time.Duration) drawn {
	m.count++
	percent := func(d time.Duration) float64 { return 100 * d.Seconds() / length.Seconds() }
	text := l.text
	if l.typed {
		text = "$ " + text
	}
	n := utf8.RuneCountInString(text)
	return drawn{
		ID: m.count, Y: y, Top: y - lineHeight + 5, Keys: len(l.text), Text: text, Typed: l.typed,
		Hidden: max(0, percent(l.at)-0.01), From: percent(l.at), Till: percent(l.at + time.Duration(len(l.text))*perKey),
		Length: float64(n) * charWidth, Covered: float64(len(l.text)) * charWidth,
	}
}

var picture = template.Must(template.New("").Funcs(template.FuncMap{
	"escape": func(text string) (string, error) {
		var escaped strings.Builder
		err := xml.EscapeText(&escaped, []byte(text))
		return escaped.String(), err
	},
}).Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="{{.Width}}" height="{{.Height}}" viewBox="0 0 {{.Width}} {{.Height}}" role="img">
<title>Two terminals: one consumes, the other publishes</title>
<style>
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d5d9e0; white-space: pre }
.title { fill: #8b93a1 } .typed { fill: #fff } .pane { fill: #171b22 } .bar { fill: #242a34 } .cover { fill: #171b22; visibility: hidden }
@media (prefers-reduced-motion: no-preference) {
.cover { visibility: visible }
{{- range .Panes}}{{range .Lines}}
#l{{.ID}} { animation: l{{.ID}} {{printf "%.2f" $.Seconds}}s infinite }
@keyframes l{{.ID}} { 0%, {{printf "%.2f" .Hidden}}% { opacity: 0 } {{printf "%.2f" .From}}%, 100% { opacity: 1 } }
{{- if .Typed}}
#c{{.ID}} { animation: c{{.ID}} {{printf "%.2f" $.Seconds}}s infinite }
@keyframes c{{.ID}} { 0% { transform: none } {{printf "%.2f" .From}}% { transform: none; animation-timing-function: steps({{.Keys}}) } {{printf "%.2f" .Till}}%, 100% { transform: translateX({{printf "%.1f" .Covered}}px) } }
{{- end}}{{end}}{{end}}
}
</style>
{{range .Panes}}<svg y="{{.Y}}" width="{{$.Width}}" height="{{.Height}}" viewBox="0 {{.Y}} {{$.Width}} {{.Height}}">
<rect class="pane" y="{{.Y}}" width="100%" height="{{.Height}}" rx="7"/><rect class="bar" y="{{.Y}}" width="100%" height="26" rx="7"/>
<text class="title" x="14" y="{{.TitleY}}">{{.Title}}</text>
{{range .Lines}}<g id="l{{.ID}}"><text{{if .Typed}} class="typed"{{end}} x="14" y="{{.Y}}" textLength="{{printf "%.1f" .Length}}">{{escape .Text}}</text>
{{- if .Typed}}<rect id="c{{.ID}}" class="cover" x="28" y="{{.Top}}" width="{{printf "%.1f" .Covered}}" height="18"/>{{end}}</g>
{{end}}</svg>
{{end}}</svg>
`))
