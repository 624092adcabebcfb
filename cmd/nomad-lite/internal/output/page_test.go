package output

import (
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

func TestPage(t *testing.T) {
	p := &Page{useColours: true}
	p.AddPairs(Pairs{{"ID", "web"}, {"Status", StatusCell("running")}, {"Node Pool", ""}})
	p.AddSectionTitle("Allocations")
	rows := NewTable("ID", "Name", "N")
	rows.AddRow("a", ColouredCell{terminal.ColourRed, "é\x1b[2J\nlost"}, 1)
	rows.AddRow("abcdef", "b", 22)
	p.AddTable(rows)
	p.AddLine("Task %q: %s %d", "\x1b]0;title\a", StatusCell("failed"), 3)
	want := "\x1b[1mID\x1b[0m        = web\n" +
		"\x1b[1mStatus\x1b[0m    = \x1b[32mrunning\x1b[0m\n" +
		"\x1b[1mNode Pool\x1b[0m = <none>\n" +
		"\n\x1b[1mAllocations\x1b[0m\n" +
		"\x1b[1mID\x1b[0m      \x1b[1mName\x1b[0m    \x1b[1mN\x1b[0m\n" +
		"a       \x1b[31mé lost\x1b[0m  1\n" +
		"abcdef  b       22\n" +
		"Task \"<none>\": \x1b[31mfailed\x1b[0m 3\n"
	if got := p.Text.String(); got != want {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}

func TestFormatRelativeTime(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                     "0s ago",
		-time.Minute:                          "1m from now",
		59*time.Second + 900*time.Millisecond: "59s ago",
		61 * time.Second:                      "1m1s ago",
		25*time.Hour + 3*time.Minute:          "1d1h ago",
		24*time.Hour + 3*time.Minute:          "1d ago",
		400 * 24 * time.Hour:                  "1y1mo ago",
	} {
		if got := FormatRelativeTime(d); got != want {
			t.Errorf("ago(%v) = %q, want %q", d, got, want)
		}
	}
}
