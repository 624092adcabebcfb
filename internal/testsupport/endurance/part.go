package endurance

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// part is one part of a long run, and a row of the table in docs/endurance.md.
type part struct {
	startTime   time.Time // in UTC, in seconds
	testName    string    // package below the module, and function
	commit      string
	codeHash    string // hash of the code under test
	firstSeed   uint64 // seed of the first iteration
	duration    time.Duration
	count       int
	unit        string         // unit of count, such as "simulations"
	countByKind map[string]int // the count of each kind of work; nil if the test names no kinds
	loadText    string         // what ran at the same time, and the load average of the machine
	result      string         // one of the results below
}

// The results of a part. A failed part has the first failure behind failedPrefix.
const (
	resultPassed      = "passed"
	resultUnfinished  = "unfinished" // the test runs, or its process has ended without a report
	resultInterrupted = "interrupted"
	resultTimedOut    = "timed out"
	failedPrefix      = "failed: "
)

const (
	tableHeader = "| Start (UTC) | Test | Commit | Code | Seed | Duration | Count | Load | Result |\n" +
		"| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
	columnCount = 9
)

// minPartDuration is the minimum duration of a part that formatTestTotal includes in the total.
const minPartDuration = 30 * time.Minute

// String returns the row of the part in the table.
func (p part) String() string {
	columns := []string{
		p.startTime.Format(time.DateTime), p.testName, p.commit, p.codeHash, strconv.FormatUint(p.firstSeed, 10), p.duration.String(),
		formatCount(p.count, p.unit, p.countByKind), p.loadText, p.result,
	}
	return "| " + strings.Join(columns, " | ") + " |"
}

// formatCount returns a count with its unit and its kinds, such as "12 allocations: docker 2, exec 10".
func formatCount(count int, unit string, kinds map[string]int) string {
	text := fmt.Sprintf("%d %s", count, unit)
	for i, kind := range slices.Sorted(maps.Keys(kinds)) {
		separator := ", "
		if i == 0 {
			separator = kindsSeparator
		}
		text += fmt.Sprintf("%s%s %d", separator, kind, kinds[kind])
	}
	return text
}

// kindsSeparator is between the unit of a count and its first kind.
const kindsSeparator = ": "

// parseKinds parses the kinds in a result of formatCount.
func parseKinds(text string) (kinds map[string]int, err error) {
	kinds = map[string]int{}
	for entry := range strings.SplitSeq(text, ", ") {
		kind, count, _ := strings.Cut(entry, " ")
		if kinds[kind], err = strconv.Atoi(count); err != nil {
			return nil, err
		}
	}
	return kinds, nil
}

// parsePart parses a row of the table. An error names the column.
func parsePart(row string) (p part, err error) {
	columns := strings.Split(strings.Trim(row, "| "), " | ")
	if len(columns) != columnCount {
		return p, fmt.Errorf("%d columns, want %d", len(columns), columnCount)
	}
	p = part{testName: columns[1], commit: columns[2], codeHash: columns[3], loadText: columns[7], result: columns[8]}
	if p.startTime, err = time.Parse(time.DateTime, columns[0]); err != nil {
		return p, fmt.Errorf("start: %w", err)
	}
	if p.firstSeed, err = strconv.ParseUint(columns[4], 10, 64); err != nil {
		return p, fmt.Errorf("seed: %w", err)
	}
	if p.duration, err = time.ParseDuration(columns[5]); err != nil {
		return p, fmt.Errorf("duration: %w", err)
	}
	count, unit, _ := strings.Cut(columns[6], " ")
	if p.count, err = strconv.Atoi(count); err != nil {
		return p, fmt.Errorf("count: %w", err)
	}
	unit, kinds, hasKinds := strings.Cut(unit, kindsSeparator)
	p.unit = unit
	if hasKinds {
		if p.countByKind, err = parseKinds(kinds); err != nil {
			return p, fmt.Errorf("count of a kind: %w", err)
		}
	}
	for name, value := range map[string]string{"test": p.testName, "commit": p.commit, "code": p.codeHash, "unit of the count": p.unit, "load": p.loadText} {
		if strings.TrimSpace(value) == "" {
			return p, fmt.Errorf("%s is empty", name)
		}
	}
	switch p.result {
	case resultPassed, resultUnfinished, resultInterrupted, resultTimedOut:
	default:
		if !strings.HasPrefix(p.result, failedPrefix) {
			return p, fmt.Errorf("unknown result %q", p.result)
		}
	}
	if p.String() != row {
		return p, fmt.Errorf("the row is not in the form of\n%v", p)
	}
	return p, nil
}

// parseTable returns the parts of the table at the end of a document.
func parseTable(document string) (parts []part, err error) {
	_, rows, found := strings.Cut(document, tableHeader+"\n")
	if !found {
		return nil, fmt.Errorf("there is no table with the header\n%s", tableHeader)
	}
	for row := range strings.Lines(rows) {
		p, err := parsePart(strings.TrimSuffix(row, "\n"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimSpace(row), err)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// writeRow writes a row to the table at the end of the document at path. The row replaces the row before; if the table
// does not have the row before, writeRow appends the row. It returns the parts of the table. It locks the document,
// so that several processes can write to one document.
func writeRow(path, before, row string) (parts []part, err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }() // also unlocks the file
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	document, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	text, found := string(document), false
	if before != "" {
		var head, tail string
		if head, tail, found = strings.Cut(text, before+"\n"); found {
			text = head + row + "\n" + tail
		}
	}
	if !found {
		text += row + "\n"
	}
	if parts, err = parseTable(text); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := file.WriteAt([]byte(text), 0); err != nil {
		return nil, err
	}
	return parts, file.Truncate(int64(len(text)))
}

// formatTestTotal returns a sentence with the total count and duration of all parts of the same test and code as p.
func formatTestTotal(parts []part, p part) string {
	passed, failed, count, duration, kinds := 0, 0, 0, time.Duration(0), map[string]int{}
	for _, other := range parts {
		switch {
		case other.testName != p.testName || other.codeHash != p.codeHash:
		case strings.HasPrefix(other.result, failedPrefix) || other.result == resultTimedOut:
			failed++
		case other.result == resultPassed && other.duration >= minPartDuration:
			passed++
			count += other.count
			duration += other.duration
			for kind, n := range other.countByKind {
				kinds[kind] += n
			}
		}
	}
	return fmt.Sprintf("%s, code %s: %d passed parts of %v or more, together %v, %s; %d failed parts",
		p.testName, p.codeHash, passed, minPartDuration, duration, formatCount(count, p.unit, kinds), failed)
}
