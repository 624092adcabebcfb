package execsession

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestEscapeReader(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		typed, want string
		left        bool
	}{
		"nothing to escape":               {"ls\r", "ls\r", false},
		"the escape ends the session":     {"ls\r~.", "ls\r", true},
		"at the very beginning":           {"~.", "", true},
		"not in the middle of a line":     {"a~.\r", "a~.\r", false},
		"twice stands for once":           {"~~.\r", "~.\r", false},
		"followed by something else":      {"~x\r~.", "~x\r", true},
		"followed by the end of the line": {"~\r~.", "~\r", true},
	} {
		left := false
		e := &escapeReader{input: iotest.OneByteReader(strings.NewReader(c.typed)), escapeChar: '~', atLineStart: true, onDetach: func() { left = true }}
		got, err := io.ReadAll(e)
		if err != nil || string(got) != c.want || left != c.left {
			t.Errorf("%s: got %q, left %v, error %v; want %q, %v", name, got, left, err, c.want, c.left)
		}
	}
}
