package templatetext

import (
	"fmt"
	"strings"
	"testing"
)

func TestCertainCalls(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       string // calls with their fields
	}{
		{"no call", `{{env "A"}} text`, ""},
		{"the result with a field", `{{(read "p").user}}`, "p[user]"},
		{"with", `{{with read "p"}}{{.user}} {{.password.Value}} {{index . "a-b"}}{{end}}`, "p[a-b password user]"},
		{"with and a variable", `{{with $v := read "p"}}{{with env "A"}}{{$v.user}}{{end}}{{end}}`, "p[user]"},
		{"a variable", `{{$v := read "p"}}{{if env "A"}}{{$v.user}}{{end}}{{(index $v "key")}}`, "p[key user]"},
		{"a piped argument", `{{with "p" | read}}{{.a | toUpper | printf "%s"}}{{end}}`, "p[a]"},
		{"range", `{{range $k, $v := read "p"}}{{$k}}={{$v.Value}}{{end}}`, "p[]"},
		{"a call inside the block of another one", `{{with read "p"}}{{.a}}{{with read "q"}}{{.b}}{{end}}{{end}}`, "p[a] q[b]"},
		{"the same call twice", `{{(read "p").a}}{{(read "p").b}}`, "p[a b]"},
		{"the condition of if", `{{if read "p"}}{{read "q"}}{{end}}`, "p[]"},
		{"after a test for existence", `{{if exists "p"}}{{with read "p"}}{{.a}}{{end}}{{else}}{{read "q"}}{{end}}`, ""},
		{"after a test in with", `{{with exists "p"}}{{read "p"}}{{end}}`, ""},
		{"a list that can be empty", `{{range list "p"}}{{with read .Path}}{{.a}}{{end}}{{read "q"}}{{end}}`, ""},
		{"else", `{{with read "p"}}{{else}}{{read "q"}}{{end}}`, "p[]"},
		{"and", `{{and (read "p") (read "q")}}{{or (exists "r") (read "r")}}`, "p[]"},
		{"an argument that is not constant", `{{read (printf "%s" "p")}}{{read .a}}`, ""},
		{"a template that is defined and not certain to run", `{{define "t"}}{{read "p"}}{{end}}{{template "t" read "q"}}`, "q[]"},
		{"the argument of another function", `{{toJSON (read "p")}}`, "p[]"},
		{"the dot is another value after with", `{{with read "p"}}{{with env "A"}}{{.b}}{{end}}{{end}}`, "p[]"},
		{"syntax error", `{{with read "p"}}`, ""},
		{"nesting without end", `{{read "p"}}` + strings.Repeat("{{if 1}}", 2*MaxBlocks) + strings.Repeat("{{end}}", 2*MaxBlocks), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, call := range CertainCalls(c.text, "", "", "read") {
				got = append(got, fmt.Sprintf("%s%v", call.Arg, call.Fields))
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("calls %q, want %q", text, c.want)
			}
		})
	}
}

func TestCertainCallsWithOtherDelimiters(t *testing.T) {
	if calls := CertainCalls(`{{read "q"}} [[read "p"]]`, "[[", "]]", "read"); len(calls) != 1 || calls[0].Arg != "p" {
		t.Errorf("calls %v", calls)
	}
}

func TestHasTooManyBlocks(t *testing.T) {
	for text, want := range map[string]bool{
		"":                                      false,
		"{{ end }} iffy {{ ifs }}":              false,
		strings.Repeat("{{ if 1 }}", MaxBlocks): false,
		strings.Repeat("{{ if 1 }}", MaxBlocks+1):                                                     true,
		strings.Repeat("{{- with . -}}{{ end }}", MaxBlocks+1):                                        true,
		"{{/*x*/}}" + strings.Repeat("{{if `{{end`}}", MaxBlocks+1):                                   true,
		"{{ if 1 }}" + strings.Repeat("{{ else if 2 }}", MaxBlocks) + "{{ end }}":                     true,
		"{{ range . }}{{ end }}{{ block `a` . }}{{ end }}{{ define `b` }}{{ end }}{{ else\twith 1 }}": false,
	} {
		if got := HasTooManyBlocks(text, ""); got != want {
			t.Errorf("%.60s: %t, want %t", text, got, want)
		}
	}
	// The parser must not be called with such a text.
	if calls := CertainCalls("{{/*read*/}}"+strings.Repeat("{{if `{{end`}}", 1_100_000), "", "", "read"); calls != nil {
		t.Errorf("calls %v", calls)
	}
}
