//go:build linux

package osprocess

import (
	"strings"
	"testing"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	const fieldsAfterName = " Z 12 34 56 0 -1 4228100 103 0 0 0 0 0 0 0 20 0 1 0 7890 0 0 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 2304"
	want := Stat{State: 'Z', PPID: 12, Session: 56, Executed: true, Threads: 1, StartTime: 7890, waitStatusWord: 2304}
	for _, name := range []string{"sleep", "a b", ") R 1 1 1", "((", ""} {
		got, err := parseStat([]byte("99 (" + name + ")" + fieldsAfterName + "\n"))
		if err != nil || got != want {
			t.Errorf("program named %q: %+v, %v", name, got, err)
		}
	}
	for _, text := range []string{"", "99", "99 (x)", "99 (x) Z 1 2", "99 (x)" + strings.Replace(fieldsAfterName, "7890", "x", 1)} {
		if got, err := parseStat([]byte(text)); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

func TestParseStatReadsUsage(t *testing.T) {
	t.Parallel()
	line := "42 (a) b (c)) S 1 42 42 0 -1 4194624 100 0 0 0 11 12 0 0 20 0 1 0 12345 1000000 77 " +
		strings.Repeat("0 ", 27) + "1792"
	got, err := parseStat([]byte(line))
	want := Stat{State: 'S', PPID: 1, Session: 42, Executed: false, UserTime: 11, SystemTime: 12, Threads: 1, StartTime: 12345, RSS: 77, memory: 1000000, waitStatusWord: 1792}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"", "42 (a", "42 (a) S", "42 (a) S x x"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}
