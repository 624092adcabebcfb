package template

import (
	"fmt"
	"slices"
	"testing"
)

func TestEnvLosses(t *testing.T) {
	for text, want := range map[string]string{
		"A=1\nB=two words # c\nC='a b'\nD=\"a\\nb\" # c\nE=\n# x\nexport F=y": "[]",
		`A="x" y`:                   "[{1 A \"x\" y x y}]",
		`A='it''s'`:                 "[{1 A 'it''s' its}]",
		"B=1\nA=a\"b\"c":            "[{2 A a\"b\"c abc}]",
		`A=--title="two words"`:     `[{1 A --title="two words" --title=two words}]`,
		`A={"a":1}`:                 `[{1 A {"a":1} {a:1}}]`,
		"A=pa#ss":                   "[{1 A pa#ss pa}]",
		`A="x"#y`:                   `[{1 A "x"#y x}]`,
		`A={{ env "B" }}`:           "[]",
		"no equals sign\nA='broken": "[]",
	} {
		if got := fmt.Sprint(EnvLosses(text)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// A value whose characters are all in the variable is not a loss.
func FuzzEnvLosses(f *testing.F) {
	f.Add(`A="x" y`)
	f.Add("A=b # c")
	f.Fuzz(func(t *testing.T, text string) {
		for _, l := range EnvLosses(text) {
			if l.Written == l.Value || slices.Contains([]string{`"` + l.Value + `"`, "'" + l.Value + "'"}, l.Written) {
				t.Errorf("%q: %+v", text, l)
			}
		}
	})
}
