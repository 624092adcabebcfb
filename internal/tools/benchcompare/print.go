package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"golang.org/x/perf/benchunit"
)

// printRows prints the table, and reports whether a row is worse.
func printRows(w io.Writer, rows []comparison) (worse bool) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\nrow\tunit\tbase\tcandidate\tdifference\tnoise\tchance\tverdict\n")
	for _, c := range rows {
		if math.IsNaN(c.p) {
			fmt.Fprintf(t, "%s\t%s\t\t\t\t\t\t%s\n", c.row, c.unit, c.verdict)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t±%s\t%.2g\t%s\n", c.row, c.unit, scale(c.base, c.unit), scale(c.candidate, c.unit),
			relative("%+.1f%%", "%+.3g", c.difference, c.base), relative("%.1f%%", "%.3g", c.noise, c.base), c.p, c.verdict)
	}
	_ = t.Flush() // to a terminal
	fmt.Fprint(w, `
difference: median of the differences of the candidate and base in the rounds.
noise:      median of the differences of base and base again in the rounds.
chance:     probability of such figures, or more extreme ones, if the commits are equal.
verdict:    worse or better if the difference is larger than the noise and chance does not explain it: if the commits
            are equal, 19 of 20 comparisons have no such row.
`)
	return slices.ContainsFunc(rows, func(c comparison) bool { return c.verdict == verdictWorse })
}

func scale(value float64, unit string) string { return benchunit.Scale(value, benchunit.ClassOf(unit)) }

// relative formats value as percentage of base, or as it is if base is 0.
func relative(percent, absolute string, value, base float64) string {
	if base == 0 {
		return fmt.Sprintf(absolute, value)
	}
	return fmt.Sprintf(percent, value/math.Abs(base)*100)
}
