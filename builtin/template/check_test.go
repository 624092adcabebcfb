package template

import "testing"

func TestCheckText(t *testing.T) {
	for name, c := range map[string]struct {
		text, left, right string
		line              int
		want              string // "" for no error
	}{
		"a good template":                {text: "{{ with nomadVar \"app\" }}{{ .w }}{{ end }}\n{{ env \"HOME\" | toUpper }}"},
		"other delimiters":               {text: "[[ env \"HOME\" ]] {{ nope }}", left: "[[", right: "]]"},
		"a missing end":                  {text: "a\n{{ range nomadServices }}\n", line: 3, want: "unexpected EOF"},
		"a function that does not exist": {text: "a\nb {{ nomadVariable \"x\" }}", line: 2, want: `there is no function "nomadVariable"`},
		"a function of Consul":           {text: "{{ key \"x\" }}", line: 1, want: `function "key": there is no Consul here: nomadVar and nomadService read what this node has`},
		"an unclosed action":             {text: "{{ env ", line: 1, want: "unclosed action"},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckText(c.text, c.left, c.right)
			switch {
			case err == nil && c.want != "":
				t.Errorf("no error, want %q", c.want)
			case err != nil && (err.Reason != c.want || err.Line != c.line):
				t.Errorf("line %d: %q, want line %d: %q", err.Line, err.Reason, c.line, c.want)
			}
		})
	}
}
