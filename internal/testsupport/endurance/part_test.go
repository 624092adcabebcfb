package endurance

import (
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

func examplePart() part {
	return part{
		startTime: time.Date(2026, 11, 23, 8, 31, 5, 0, time.UTC), testName: "runtime/agent.TestSimulation", commit: "0123456789ab+changes", codeHash: "ba9876543210",
		firstSeed: 7, duration: 30*time.Minute + time.Second, count: 812, unit: "simulations", countByKind: map[string]int{"large": 12, "small": 800}, loadText: "2 at once; 2 cores, load average 2.1", result: resultPassed,
	}
}

// The rows of the document must have the form that parts print.
func TestDocumentedPartsParse(t *testing.T) {
	text, err := os.ReadFile("../../../docs/endurance.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseTable(string(text)); err != nil {
		t.Errorf("docs/endurance.md: %v", err)
	}
}

func TestParsePart(t *testing.T) {
	row := examplePart().String()
	if p, err := parsePart(row); err != nil || !reflect.DeepEqual(p, examplePart()) {
		t.Errorf("%s: got %v, %v", row, p, err)
	}
	for _, test := range []struct{ old, replacement, want string }{
		{"2026-11-23 08:31:05", "today", "start"},
		{"runtime/agent.TestSimulation", "", "test is empty"},
		{"| 7 |", "| -7 |", "seed"},
		{"30m1s", "half an hour", "duration"},
		{"30m1s", "0.5h1s", "form"},
		{"812 simulations", "many simulations", "count"},
		{"812 simulations: large 12, small 800", "812", "unit"},
		{"small 800", "small", "kind"},
		{"large 12, small 800", "small 800, large 12", "form"},
		{"passed", "fine", "unknown result"},
		{" | passed", "", "columns"},
		{"| 2026", "2026", "form"},
	} {
		bad := strings.Replace(row, test.old, test.replacement, 1)
		if _, err := parsePart(bad); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", bad, err, test.want)
		}
	}
	if _, err := parseTable("# No table\n"); err == nil {
		t.Error("a document without a table is parsed")
	}
}

// Parts that run at the same time keep each other's rows.
func TestConcurrentPartsWriteRows(t *testing.T) {
	document := newDocument(t)
	var partsWG sync.WaitGroup
	for seed := range uint64(8) {
		partsWG.Go(func() {
			p, before := examplePart(), ""
			p.firstSeed = seed
			for n := range 10 {
				p.count = n
				if _, err := writeRow(document, before, p.String()); err != nil {
					t.Error(err)
				}
				before = p.String()
			}
		})
	}
	partsWG.Wait()
	seeds := map[uint64]int{}
	for _, p := range readParts(t, document) {
		seeds[p.firstSeed]++
		if p.count != 9 {
			t.Errorf("the row is not the last: %v", p)
		}
	}
	if len(seeds) != 8 || seeds[0] != 1 {
		t.Errorf("rows by seed: %v, want one of each part", seeds)
	}
}

func TestShorterRowLeavesNothingBehind(t *testing.T) {
	document := newDocument(t)
	p := examplePart()
	for _, result := range []string{failedPrefix + strings.Repeat("x", 1000), resultPassed} {
		before := p.String()
		p.result = result
		if _, err := writeRow(document, before, p.String()); err != nil {
			t.Fatal(err)
		}
	}
	if parts := readParts(t, document); len(parts) != 1 || !reflect.DeepEqual(parts[0], p) {
		t.Errorf("got %v, want %v", parts, p)
	}
}

func TestTotal(t *testing.T) {
	with := func(change func(*part)) part {
		p := examplePart()
		change(&p)
		return p
	}
	parts := []part{
		examplePart(), examplePart(),
		with(func(p *part) { p.codeHash = "other" }),
		with(func(p *part) { p.testName = "other" }),
		with(func(p *part) { p.duration = 29 * time.Minute }),
		with(func(p *part) { p.result = resultUnfinished }),
		with(func(p *part) { p.result = failedPrefix + "seed 8" }),
	}
	const want = "2 passed parts of 30m0s or more, together 1h0m2s, 1624 simulations: large 24, small 1600; 1 failed parts"
	if got := formatTestTotal(parts, examplePart()); !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
