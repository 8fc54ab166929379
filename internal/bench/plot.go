package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Plot draws the times of the figures into a file, whose name determines the format (.svg,
// .png, .pdf). The upper plot has their distributions, as the share of samples that were faster. The lower plot has
// the latencies of figures with Idle against their statements a second when idle.
// The axes are logarithmic.
func Plot(file string, figures []Figure) error {
	var plots [][]*plot.Plot
	for _, draw := range []func([]Figure) (*plot.Plot, error){distributions, prices} {
		switch p, err := draw(figures); {
		case err != nil:
			return fmt.Errorf("bench: plot: %w", err)
		case p != nil:
			plots = append(plots, []*plot.Plot{p})
		}
	}
	if len(plots) == 0 {
		return errors.New("bench: no latency was measured: nothing to plot")
	}
	height := vg.Length(len(plots)) * 5 * vg.Inch
	canvas, err := draw.NewFormattedCanvas(9*vg.Inch, height, strings.TrimPrefix(filepath.Ext(file), "."))
	if err != nil {
		return fmt.Errorf("bench: plot: %w", err)
	}
	tiles := draw.Tiles{Rows: len(plots), Cols: 1, PadY: vg.Inch / 4}
	for i, row := range plot.Align(plots, tiles, draw.New(canvas)) {
		plots[i][0].Draw(row[0])
	}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("bench: plot: %w", err)
	}
	_, err = canvas.WriteTo(out)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("bench: plot: %w", err)
	}
	return nil
}

// CheckPlot tries whether Plot can write the file. It creates the file.
func CheckPlot(file string) error {
	_, err := draw.NewFormattedCanvas(vg.Inch, vg.Inch, strings.TrimPrefix(filepath.Ext(file), "."))
	if err != nil {
		return err
	}
	out, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	return out.Close()
}

// distributions draws the distributions of all times. It returns nil if there are none.
func distributions(figures []Figure) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "latency"
	p.X.Label.Text = "ms"
	p.Y.Label.Text = "share of samples"
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = plot.LogTicks{Prec: -1}
	p.Legend.Left, p.Legend.Top = true, true
	p.Add(plotter.NewGrid())
	lines := 0
	for _, f := range figures {
		if f.Unit != "ms" || len(f.Samples) == 0 {
			continue
		}
		points := make(plotter.XYs, len(f.Samples))
		for i, sample := range f.Samples {
			points[i] = plotter.XY{X: max(sample, 1e-3), Y: float64(i+1) / float64(len(f.Samples))}
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		line.Color, line.Dashes = plotutil.Color(lines), plotutil.Dashes(0)
		if f.Floor == "" {
			line.Dashes = plotutil.Dashes(2)
		}
		p.Add(line)
		p.Legend.Add(f.Name, line)
		lines++
	}
	if lines == 0 {
		return nil, nil
	}
	return p, nil
}

// prices draws the latencies against their idle statements. It returns nil if no figure has Idle.
func prices(figures []Figure) (*plot.Plot, error) {
	var points plotter.XYs
	var names []string
	for _, f := range figures {
		if f.Idle == nil || len(f.Samples) == 0 {
			continue
		}
		// A logarithmic axis has no 0: the left edge stands for it.
		points = append(points, plotter.XY{X: max(*f.Idle, 0.01), Y: max(f.Median, 1e-3)})
		names = append(names, " "+f.Name)
	}
	if len(points) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.Title.Text = "latency against idle statements"
	p.X.Label.Text, p.Y.Label.Text = "statements a second when idle", "median latency, ms"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0.01, 1e5, 0.1, 1000 // with room for the names
	p.Add(plotter.NewGrid())
	dots, err := plotter.NewScatter(points)
	if err != nil {
		return nil, err
	}
	dots.Shape, dots.Color, dots.Radius = draw.CircleGlyph{}, plotutil.Color(0), vg.Points(4)
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: points, Labels: names})
	if err != nil {
		return nil, err
	}
	p.Add(dots, labels)
	return p, nil
}
