package main

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// figure is one figure that a run of a benchmark has printed.
type figure struct {
	rowID
	value float64
	step  float64 // difference of neighbouring values that the format can show; 0 means exact
}

type rowID struct{ row, unit string }

var processorCount = regexp.MustCompile(`-\d+$`)

// parseFigures parses the output of a test binary: lines of the benchmark format, and the table of
// the benchmarks of the whole program. row names the figures of the benchmark function.
func parseFigures(row, out string) (figures []figure, err error) {
	reader := benchfmt.NewReader(strings.NewReader(out), "")
	for reader.Scan() {
		// Lines without a figure, of a benchmark that reports in the table, are a SyntaxError.
		result, isResult := reader.Result().(*benchfmt.Result)
		if !isResult {
			continue
		}
		name := row
		if _, sub, found := strings.Cut(processorCount.ReplaceAllString(result.Name.String(), ""), "/"); found {
			name += "/" + sub
		}
		for _, v := range result.Values {
			figures = append(figures, figure{rowID: rowID{name, v.Unit}, value: v.Value})
		}
	}
	return append(figures, parseTable(out)...), reader.Err()
}

var columnGap = regexp.MustCompile(` {2,}`)

// parseTable parses the table of the benchmarks of the whole program, which systemtest prints after
// all benchmarks:
//
//	                                 measured  floor of this run  budget  Nomad ...
//	agent exec -> node ready, fresh  75.2 ms   11.3               60      1300-2700
func parseTable(out string) (figures []figure) {
	columnCount := 0 // of the table; 0 outside
	for line := range strings.Lines(out) {
		columns := columnGap.Split(strings.TrimRight(line, " \n"), -1)
		if len(columns) > 2 && columns[1] == "measured" {
			columnCount = len(columns)
			continue
		}
		if columnCount == 0 || len(columns) != columnCount {
			columnCount = 0
			continue
		}
		number, unit, _ := strings.Cut(columns[1], " ")
		value, err := strconv.ParseFloat(number, 64)
		if err != nil {
			columnCount = 0
			continue
		}
		step := 0.0
		if value != 0 { // the table prints three digits
			step = math.Pow(10, math.Floor(math.Log10(math.Abs(value)))-2)
		}
		figures = append(figures, figure{rowID{columns[0], unit}, value, step})
	}
	return figures
}

// side is the place of a run in a round.
type side int

const (
	sideBase side = iota
	sideAgain
	sideCandidate
	sideCount
)

func (s side) String() string {
	return [...]string{"base", "base again", "candidate"}[s]
}

// samples are the figures of all rounds, in the order of the rounds.
type samples map[rowID]*[sideCount][]figure

func (s samples) add(at side, f figure) {
	if s[f.rowID] == nil {
		s[f.rowID] = &[sideCount][]figure{}
	}
	s[f.rowID][at] = append(s[f.rowID][at], f)
}
