package terminal

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
)

// writeParts writes a text to a SanitizingWriter in parts that end at random places, and returns what the file got.
func writeParts(t *testing.T, text string, asJSON bool, random *rand.Rand) string {
	t.Helper()
	r, file, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w := &SanitizingWriter{file: file, isJSON: asJSON}
	for rest := []byte(text); len(rest) > 0; {
		n := 1 + random.IntN(min(len(rest), 9))
		if written, err := w.Write(rest[:n]); err != nil || written != n {
			t.Fatalf("%d of %d bytes, %v", written, n, err)
		}
		rest = rest[n:]
	}
	file.Close()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

var colourPattern = regexp.MustCompile("\x1b\\[[0-9;:]*m")

// TestWriterJoinsSplitText writes random texts in random parts, as the frames of a stream are.
func TestWriterJoinsSplitText(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	parts := []string{
		"a", "é", "日本", "🚀", "\x1b[31m", "\x1b[0m", "\x1b[2J", "\x1b]0;title\a", "\x1b]8;;http://x\x1b\\", "\x1b[>4;2m", "\u009b", "\u202e", "\u200b", "\u2028", "\xff", "\x9b", "\r", "\r\n", "\n", "\t",
	}
	for range 300 {
		text := ""
		for range random.IntN(20) {
			text += parts[random.IntN(len(parts))]
		}
		text += "\n"
		want := string(SanitizeText([]byte(text), false))
		if got := colourPattern.ReplaceAllString(writeParts(t, text, false, random), ""); got != want {
			t.Fatalf("%q: got %q, want %q", text, got, want)
		}
		value := map[string]string{strings.ToValidUTF8(text, ""): text}
		encoded, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		printed := writeParts(t, string(encoded)+"\n", true, random)
		var decoded, wantValue map[string]string
		if json.Unmarshal(encoded, &wantValue) != nil || json.Unmarshal([]byte(printed), &decoded) != nil || len(decoded) != 1 {
			t.Fatalf("%q is no JSON", printed)
		}
		for key, text := range wantValue {
			if decoded[key] != text {
				t.Fatalf("%q was printed as %q", encoded, printed)
			}
		}
		if strings.ContainsAny(printed, "\u009b\u202e\u200b\u2028\x1b") {
			t.Fatalf("the JSON has a control character: %q", printed)
		}
	}
}

func TestWriterKeepsNoEndlessSequence(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	if got := writeParts(t, "a\x1b]"+strings.Repeat("x", 3*maxPending)+"\nb\n", false, random); !strings.HasPrefix(got, "a") || !strings.HasSuffix(got, "\nb\n") || strings.Contains(got, "\x1b") {
		t.Errorf("got %q", got)
	}
}

func TestStreamsThatAreNoTerminalsGetAllBytes(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, stream := range []io.Writer{w, &strings.Builder{}} {
		if got := EscapeJSONIfTerminal(SanitizeIfTerminal(stream)); got != stream || UnsanitizedStream(stream) != stream {
			t.Errorf("%T became %T", stream, got)
		}
	}
}
