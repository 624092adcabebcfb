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

func TestEnvNames(t *testing.T) {
	for _, c := range []struct {
		text       string
		names      []string
		isComplete bool
	}{
		{"# A=1\nB=2\nexport C = {{ env \"x\" }}\n", []string{"B", "C"}, true},
		{"{{- with nomadVar \"a\" -}}\nUSER={{ .user }}\n{{- end -}}", []string{"USER"}, true},
		{"{{ $v := env \"x\" }}{{/* note */}}A={{ $v }}", []string{"A"}, true},
		{"A=1\n{{ range nomadVarList }}{{ .Key }}={{ .Value }}\n{{ end }}", []string{"A"}, false},
		{"{{ key \"config\" }}", nil, false},
		{"A={{ x", nil, false},
	} {
		names, isComplete := EnvNames(c.text, "", "")
		if !slices.Equal(names, c.names) || isComplete != c.isComplete {
			t.Errorf("%q: got %q, %v, want %q, %v", c.text, names, isComplete, c.names, c.isComplete)
		}
	}
	if names, isComplete := EnvNames("A=[[ x ]]\n{{ y }}=1", "[[", "]]"); !slices.Equal(names, []string{"A", "{{ y }}"}) || !isComplete {
		t.Errorf("other delimiters: got %q, %v", names, isComplete)
	}
}
