package template

import (
	"maps"
	"strings"
	"testing"
)

func TestParseEnv(t *testing.T) {
	got, err := parseEnv(strings.Join([]string{
		"# a comment", "", "A=1", "  B = two words  ", `TPLQ="quoted v" # c`, `Q='raw \n "x"'`, `E="a\nb\t\"c\" \\ \$ \x"`,
		"export X=y", "C=v # c", "H=a#b", "N=", "D=#c", `J={"a": 1}`, "EQ=a=b", `U="\u00e9 \ud83d\ude00 \ud83d \u12 \u0000"`, "\tT=t\r", "my-port.x=1",
	}, "\n"))
	want := map[string]string{
		"A": "1", "B": "two words", "TPLQ": "quoted v", "Q": `raw \n "x"`, "E": "a\nb\t\"c\" \\ $ \\x", "X": "y", "C": "v", "H": "a#b", "N": "", "D": "",
		"J": `{"a": 1}`, "EQ": "a=b", "U": "é 😀 \ufffd \\u12 \\u0000", "T": "t", "my-port.x": "1",
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got  %q, %v\nwant %q", got, err, want)
	}
	for text, want := range map[string]string{
		"A=1\nnonsense":      "line 2: no = in it",
		"1A=x":               `line 1: "1A" is no name of a variable`,
		"=x":                 `line 1: "" is no name of a variable`,
		"A B=secret":         `line 1: "A B" is no name of a variable`,
		`A="secret`:          "line 1: the value of A: the closing quote is missing: a line end inside is written \\n",
		`A='secret' more`:    "line 1: the value of A: there is something behind the closing quote",
		"A=secret\x00secret": "line 1: the value of A: there is a NUL byte in it",
	} {
		if env, err := parseEnv(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, %v, want %s", text, env, err, want)
		}
	}
}

// Quoting a value and parsing it results in the same value.
func FuzzParseEnv(f *testing.F) {
	f.Add("A=1\nB='x' # y", "v")
	f.Fuzz(func(t *testing.T, text, value string) {
		if env, err := parseEnv(text); err == nil {
			for name, value := range env {
				if !isValidEnvName(name) || strings.ContainsRune(value, 0) {
					t.Errorf("%q = %q", name, value)
				}
			}
		}
		if strings.ContainsAny(value, "\x00\n\r") {
			return
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
		if env, err := parseEnv("X=" + quoted); err != nil || env["X"] != value {
			t.Errorf("%s: %q, %v", quoted, env, err)
		}
	})
}
