package terminal

import "testing"

func TestSanitizeText(t *testing.T) {
	for text, want := range map[string]string{
		"plain\ttext\n":           "plain\ttext\n",
		"\x1b[1;31mred\x1b[m\n":   "\x1b[1;31mred\x1b[m\n",
		"\x1b[1;31mred\nnext":     "\x1b[1;31mred\x1b[0m\nnext",
		"a\x1b[2Jb\x1b[10;10Hc":   "abc",
		"\x1b]8;;http://x\x1b\\l": "l",
		"a\x1bcb\x1b":             "ab",
		"a\x1b[12\nb":             "a\nb",
		"a\bb\x00c\u009bd":        "abcd",
		"50%\r100%\r\n":           "50%\n100%\n",
		"\xff\xfe\n":              "\xff\xfe\n",
	} {
		if got := SanitizeText([]byte(text), true); string(got) != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := SanitizeText([]byte("\x1b[31mred\x1b[0m"), false); string(got) != "red" {
		t.Errorf("without colours: got %q", got)
	}
}
