package redact_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/redact"
)

func TestText(t *testing.T) {
	tests := []struct{ name, value, text, want string }{
		{"as it is", "hunter2", "the password hunter2 is wrong", "the password <redacted> is wrong"},
		{"whole text", "hunter2", "hunter2", "<redacted>"},
		{"twice", "hunter2", "hunter2hunter2", "<redacted><redacted>"},
		{"other text", "hunter2", "hunter", "hunter"},
		{"short", "pw", "pw and pwd", "<redacted> and <redacted>d"},
		{"empty", "", "text", "text"},
		{"quoted", "a\"b\nc", `parsing "a\"b\nc": invalid`, `parsing "<redacted>": invalid`},
		{"quoted as ASCII", "geheimnis-ß", fmt.Sprintf("%+q", "geheimnis-ß"), `"<redacted>"`},
		{"JSON", "a<b>&\"c", `{"error":"a\u003cb\u003e\u0026\"c"}`, `{"error":"<redacted>"}`},
		{"query", "p&ss w=rd", "https://host/?key=" + url.QueryEscape("p&ss w=rd"), "https://host/?key=<redacted>"},
		{"user of a URL", "p/ss w@rd", url.UserPassword("me", "p/ss w@rd").String(), "me:<redacted>"},
		{"base64", "correct horse", "Y29ycmVjdCBob3JzZQ==", "<redacted>=="},
		{"a line of several", "-----BEGIN-----\n  MIIEvAIBADAN\n", "read MIIEvAIBADAN: bad", "read <redacted>: bad"},
		{"truncated", "a very long password", "the password is a very l", "the password is <redacted>"},
		{"truncated with an ellipsis", "a very long password", "the password is a very l…", "the password is <redacted>…"},
		{"a value with an ellipsis at its end", "a very long password…", "a very long password…", "<redacted>"},
		{"truncated too early to know", "a very long password", "the password is a very", "the password is a very"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var v redact.Values
			v.Add(test.value)
			if got := v.Text(test.text); got != test.want {
				t.Errorf("Text(%q) = %q, want %q", test.text, got, test.want)
			}
		})
	}
}

// Values that overlap leave no part of one of them.
func TestOverlap(t *testing.T) {
	var v redact.Values
	v.Add("abcdef", "defghi", "abc", "efg")
	if got := v.Text("-abcdefghi-abcd-"); got != "-<redacted>-<redacted>d-" {
		t.Errorf("got %q", got)
	}
}

func TestChildren(t *testing.T) {
	node := redact.NewShared()
	first, second := node.NewChild(), node.NewChild()
	first.Add("password1", "password1", "short")
	second.Add("password1")
	const text = "password1 short"
	want := func(step string, v *redact.Values, want string) {
		t.Helper()
		if got := v.Text(text); got != want {
			t.Errorf("%s: %q, want %q", step, got, want)
		}
	}
	want("child", first, "<redacted> <redacted>")
	want("other child", second, "<redacted> short")
	want("shared", node, "<redacted> short") // nothing shorter than six bytes
	first.Close()
	first.Close()
	want("the other still has it", node, "<redacted> short")
	want("closed child", first, "<redacted> <redacted>")
	second.Close()
	want("nobody has it", node, text)
	if !node.IsEmpty() {
		t.Error("the shared set is not empty")
	}
	second.Add("password2")
	if node.Text("password2") != "password2" {
		t.Error("a closed child added a value to the shared set")
	}
}

func TestNil(t *testing.T) {
	var v *redact.Values
	v.Add("x")
	v.Close()
	if !v.IsEmpty() || v.Text("x") != "x" || v.Error(nil) != nil {
		t.Error("nil is not an empty set")
	}
	child := v.NewChild()
	child.Add("password")
	child.Close()
	if got := child.Text("password"); got != redact.Placeholder {
		t.Errorf("child of nil: %q", got)
	}
}

func TestErrorKeepsItsCause(t *testing.T) {
	var v redact.Values
	v.Add("hunter2")
	err := v.Error(fmt.Errorf("hunter2: %w", io.ErrUnexpectedEOF))
	if err.Error() != "<redacted>: unexpected EOF" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error: %v", err)
	}
	if v.Error(io.EOF) != io.EOF {
		t.Error("an error without a secret was replaced")
	}
}

func TestWriterReportsAllBytes(t *testing.T) {
	v := redact.NewShared()
	v.Add("hunter2")
	var out strings.Builder
	const line = "user=me password=hunter2\n"
	if n, err := io.WriteString(v.Writer(&out), line); n != len(line) || err != nil || out.String() != "user=me password=<redacted>\n" {
		t.Errorf("wrote %d bytes, %v: %q", n, err, out.String())
	}
}

// Random values in random texts, in each written form: no form of a value remains, and the text around them does.
func FuzzText(f *testing.F) {
	f.Add(uint64(1), "before ", " after")
	f.Fuzz(func(t *testing.T, seed uint64, before, after string) {
		r := rand.New(rand.NewPCG(seed, 0))
		const letters = "abcd\"\\\n\t <>&%/+=ß\x00"
		runes := []rune(letters)
		var v redact.Values
		values := make([]string, 1+r.IntN(5))
		for i := range values {
			value := make([]rune, 4+r.IntN(12))
			for j := range value {
				value[j] = runes[r.IntN(len(runes))]
			}
			values[i] = "#" + string(value) // no other text has this sign
			v.Add(values[i])
		}
		before, after = strings.ReplaceAll(before, "#", ""), strings.ReplaceAll(after, "#", "")
		before, after = strings.ReplaceAll(before, "%23", ""), strings.ReplaceAll(after, "%23", "")
		value := values[r.IntN(len(values))]
		inJSON, _ := json.Marshal(value)
		for _, form := range []string{value, fmt.Sprintf("%q", value), string(inJSON), url.QueryEscape(value), url.PathEscape(value)} {
			text := before + "|" + form + "|" + after
			got := v.Text(text)
			if strings.Contains(got, form) {
				t.Fatalf("%q of %q remains: %q", form, text, got)
			}
			if !strings.HasSuffix(got, "|"+after) && len(after) < 8 {
				t.Fatalf("%q: the text after the value is lost: %q", text, got)
			}
		}
	})
}

// The cost of a text is that of its length, however many values there are.
func BenchmarkText(b *testing.B) {
	text := strings.Repeat("2026-11-28T07:00:00Z [INFO] client.driver: task started: alloc_id=0b6d2a52\n", 3)
	for _, n := range []int{0, 10, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var v redact.Values
			for range n {
				v.Add(fmt.Sprintf("%016x", rand.Uint64()))
			}
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				v.Text(text)
			}
		})
	}
}
