package shellquote

import (
	"os/exec"
	"testing"
)

// A shell reads the quoted text as one word.
func TestShellReadsQuotedText(t *testing.T) {
	for _, text := range []string{"", "plain", "a b", "it's", `"$HOME"`, "a\nb", "*", "-x=1,2:/@%+._", "~", "ü"} {
		for name, quoted := range map[string]string{"Quote": Quote(text), "QuoteIfNeeded": QuoteIfNeeded(text)} {
			out, err := exec.Command("/bin/sh", "-c", "printf '%s|' "+quoted).Output()
			if err != nil || string(out) != text+"|" {
				t.Errorf("%s(%q) = %s: a shell reads %q, error %v", name, text, quoted, out, err)
			}
		}
	}
	if got := QuoteIfNeeded("/bin/a-b"); got != "/bin/a-b" {
		t.Errorf("text without special characters is quoted: %s", got)
	}
}
