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
		"\xff\xfe\n":              "\ufffd\ufffd\n",
		"a\x9b2Jb":                "a\ufffd2Jb",
		"a\u202eb\u2066c\u200bd":  "abcd",
		"a\u2028b\u2029c":         "a b c",
		"\x1b[>4;2mb\x1b[?4m":     "b",
		"👩\u200d💻 \u0600":         "👩\u200d💻 \u0600",
	} {
		if got := SanitizeText([]byte(text), true); string(got) != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := SanitizeText([]byte("\x1b[31mred\x1b[0m"), false); string(got) != "red" {
		t.Errorf("without colours: got %q", got)
	}
}

func TestSingleLine(t *testing.T) {
	for text, want := range map[string]string{
		" a\tb\nc ":                       "a b c",
		"\x1b[2J\x1b]0;title\aname":       "name",
		"a\u009b2Jb":                      "a2Jb",
		"abc\u202edcba\u2066x":            "abcdcbax",
		"e\u0301":                         "e\u0301",
		"e\u0301\u0301\u0301\u0301\u0301": "e\u0301\u0301\u0301\u0301",
		"a\u2028b":                        "a b",
		"\xff\xfe":                        "\ufffd\ufffd",
	} {
		if got := SanitizeAndTrimLine(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestWidths(t *testing.T) {
	for text, want := range map[string]int{
		"abc": 3, "é": 1, "e\u0301": 1, "日本": 4, "ｗ": 2, "🚀x": 3, "\x1b[31mred\x1b[0m": 3, "a\u200db": 2,
	} {
		if got := DisplayWidth(text); got != want {
			t.Errorf("DisplayWidth(%q) = %d, want %d", text, got, want)
		}
	}
	for _, c := range []struct {
		text    string
		columns int
		want    string
	}{
		{"abc", 2, "ab"}, {"abc", 3, "abc"}, {"日本", 3, "日"}, {"日本", 1, ""}, {"e\u0301x", 1, "e\u0301"}, {"abc", 0, ""},
	} {
		if got := TruncateToWidth(c.text, c.columns); got != c.want {
			t.Errorf("TruncateToWidth(%q, %d) = %q, want %q", c.text, c.columns, got, c.want)
		}
	}
}
