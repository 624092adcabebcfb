package evaluate

import (
	"fmt"
	"testing"
)

func TestCheckText(t *testing.T) {
	for name, c := range map[string]struct {
		text, left, right string
		line              int
		want              string // "" for no error
	}{
		"a good template":                {text: "{{ with nomadVar \"app\" }}{{ .w }}{{ end }}\n{{ env \"HOME\" | toUpper }}"},
		"an endless one":                 {text: "{{ range loop 1000000000000 }}{{ end }}"},
		"other delimiters":               {text: "[[ env \"HOME\" ]] {{ nope }}", left: "[[", right: "]]"},
		"a missing end":                  {text: "a\n{{ range nomadServices }}\n", line: 3, want: "unexpected EOF"},
		"a function that does not exist": {text: "a\nb {{ nomadVariable \"x\" }}", line: 2, want: `function "nomadVariable" not defined`},
		"a function of Consul":           {text: "{{ key \"x\" }}", line: 1, want: `function "key": there is no Consul here: nomadVar and nomadService read what this node has`},
		"no text":                        {},
		"an unclosed action":             {text: "{{ env ", line: 1, want: "unclosed action"},
	} {
		t.Run(name, func(t *testing.T) {
			list := CheckText(c.text, c.left, c.right)
			switch {
			case len(list) == 0 && c.want != "":
				t.Errorf("no error, want %q", c.want)
			case len(list) > 0 && (len(list) > 1 || list[0].Reason != c.want || list[0].Line != c.line):
				t.Errorf("%v, want line %d: %q", list, c.line, c.want)
			}
		})
	}
}

func TestUnansweredCalls(t *testing.T) {
	text := "{{ env \"A\" }}\n{{ with secret \"x\" }}{{ key \"a\" }}{{ end }}\n{{ define \"x\" }}{{ if ls \"b\" | len }}{{ end }}{{ end }}{{ key \"b\" }}"
	got := ""
	for _, c := range CheckText(text, "", "") {
		got += fmt.Sprintf("%d: %s\n", c.Line, c.Reason)
	}
	const want = "2: function \"secret\": there is no Vault here: nomadVar and nomadService read what this node has\n" +
		"2: function \"key\": there is no Consul here: nomadVar and nomadService read what this node has\n" +
		"3: function \"ls\": there is no Consul here: nomadVar and nomadService read what this node has\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
