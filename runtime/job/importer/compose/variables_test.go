package compose

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	lookup := func(name string) (string, bool) {
		v, ok := map[string]string{"A": "1", "EMPTY": "", "B": "two"}[name]
		return v, ok
	}
	for text, want := range map[string]string{
		"plain":                "plain",
		"$A-${B}":              "1-two",
		"$$A $${A}":            "$A ${A}",
		"${X:-d} ${EMPTY:-e}":  "d e",
		"${X-d} ${EMPTY-e}":    "d ",
		"${A:+yes} ${X:+no}":   "yes ",
		"${EMPTY+set}":         "set",
		"${X:-${Y:-deep $A}}":  "deep 1",
		"${X:-a{b}":            "a{b",
		"${A:?needed}${B?it}":  "1two",
		"$X":                   "",
		"${X:-}":               "",
		"${X:-http://h:80/?a}": "http://h:80/?a",
		"$":                    "$",
		"cost: $5 ^a$":         "cost: $5 ^a$",
		"$(id -u) $2a$14$B":    "$(id -u) $2a$14two",
		"${X:-^a$}":            "^a$",
	} {
		got, err := (&expander{lookup: lookup, missing: func(string) {}}).expand(text)
		if got != want || err != nil {
			t.Errorf("%s: got %q %v, want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"${A": "closing brace", "${}": "no name", "${X:?is missing}": "X is required: is missing", "${EMPTY:?}": "EMPTY is required", "${A!}": "no reference",
	} {
		if got, err := (&expander{lookup: lookup, missing: func(string) {}}).expand(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q %v, want an error with %q", text, got, err, want)
		}
	}
	missing, kept := []string{}, []string{}
	e := expander{lookup, func(name string) { missing = append(missing, name) }, func(dollar string) { kept = append(kept, dollar) }}
	if _, err := e.expand("$X ${Y} ${Z:-d} $A $1"); err != nil || !slices.Equal(missing, []string{"X", "Y"}) || !slices.Equal(kept, []string{"$1"}) {
		t.Errorf("missing variables: got %q, kept %q, %v", missing, kept, err)
	}
}

func TestParseEnvFile(t *testing.T) {
	text := "\ufeff# comment\n\nA=1\nexport B = two words # comment\nC='$A #not'\nD=\"x\\ty $A ${B}\"\r\nE=\"first\nsecond\"\nF=a#b\nINHERITED\nABSENT\nG: yaml\nH=pa$$word\nI=$5\n"
	want := map[string]string{
		"A": "1", "B": "two words", "C": "$A #not", "D": "x\ty 1 two words", "E": "first\nsecond", "F": "a#b", "INHERITED": "yes", "G": "yaml", "H": "pa$word", "I": "$5",
	}
	ignore := func(int, string) {}
	names, got, err := parseEnvFile(text, func(name string) (string, bool) { return "yes", name == "INHERITED" }, ignore)
	if err != nil || !maps.Equal(got, want) || len(names) != len(want) {
		t.Errorf("got %q %q %v, want %q", names, got, err, want)
	}
	for _, text := range []string{"A B=1", "='x'", "A='x", "A=${B", "\"Q\"=1"} {
		if _, got, err := parseEnvFile(text, func(string) (string, bool) { return "", false }, ignore); err == nil {
			t.Errorf("%q: got %q, want an error", text, got)
		}
	}
}

func TestSplitWords(t *testing.T) {
	for text, want := range map[string][]string{
		"a b  c":              {"a", "b", "c"},
		`sh -c "a 'b' \"c\""`: {"sh", "-c", `a 'b' "c"`},
		`'a b'c d\ e`:         {"a bc", "d e"},
		`"" '' x`:             {"", "", "x"},
		"a\\\nb":              {"ab"},
		`"keep \n and \$x"`:   {`keep \n and $x`},
		"":                    nil,
	} {
		got, err := splitWords(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q %v, want %q", text, got, err, want)
		}
	}
	if got, err := splitWords("a 'b"); err == nil {
		t.Errorf("got %q, want an error", got)
	}
}

// TestErrors checks that faults of a file are errors with their place.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"no services", "name: x\n", "compose.yaml: the file has no services"},
		{"no image", "services:\n  a: {}\n", "compose.yaml:2: the service a has neither image nor build"},
		{"service of a wrong kind", "services:\n  a: [1]\n", "compose.yaml:2: the service a must be a mapping"},
		{"unknown dependency", "services:\n  a:\n    image: x\n    depends_on: [b]\n", `compose.yaml:4: the service a depends on "b"`},
		{"cycle", "services:\n  a: {image: x, depends_on: [b]}\n  b: {image: x, depends_on: [a]}\n", "wait for each other"},
		{"unknown condition", "services:\n  a:\n    image: x\n    depends_on:\n      a: {condition: service_sleepy}\n", "compose.yaml:5: the condition"},
		{"unknown volume", "services:\n  a:\n    image: x\n    volumes: [data:/x]\n", `compose.yaml:4: the volume "data" of a is not declared`},
		{"port", "services:\n  a:\n    image: x\n    ports: ['1:70000']\n", `compose.yaml:4: "70000" is no port`},
		{"address", "services:\n  a:\n    image: x\n    ports: ['here:1:1']\n", `compose.yaml:4: "here" is no address`},
		{"memory", "services:\n  a:\n    image: x\n    mem_limit: lots\n", `compose.yaml:4: "lots" is no size`},
		{"missing environment file", "services:\n  a:\n    image: x\n    env_file: none.env\n", "compose.yaml:4: "},
		{"self reference", "services:\n  a: &a\n    image: x\n    labels: *a\n", "compose.yaml:4: the anchor \"a\" contains itself"},
		{"duplicate key", "services:\n  a: {image: x}\n  a: {image: y}\n", `compose.yaml:3: the key "a" is there twice`},
		{"extends itself", "services:\n  a: {extends: a}\n", "extends itself"},
		{"includes itself", "include: [compose.yaml]\nservices:\n  a: {image: x}\n", "includes itself"},
		{"unset required variable", "services:\n  a:\n    image: ${TAG_OF_TEST:?set it}\n", "compose.yaml:3: the variable TAG_OF_TEST is required: set it"},
		{"many values of aliases", "x-a: &a [1,1,1,1,1,1,1,1,1,1]\nx-b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nx-c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nx-d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\nx-e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nservices:\n  a: {image: x, x-f: [*e,*e]}\n", "values"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.WriteFile("compose.yaml", []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			result, err := Convert(Options{Files: []string{filepath.Join(".", "compose.yaml")}})
			if err == nil {
				t.Fatalf("got a job, want an error with %q:\n%s", c.want, result.Job)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, want %q", err, c.want)
			}
		})
	}
}

func TestParseEnvFileReportsMissingVariables(t *testing.T) {
	type missingVariable struct {
		line int
		name string
	}
	text := "A=1\nB=abc$def\nC='$literal'\nD=${default:-x} ${A} $$escaped\nE=\"first\n${last}\"\nF=pa$5\n"
	var got []missingVariable
	_, _, err := parseEnvFile(text, func(string) (string, bool) { return "", false }, func(line int, name string) { got = append(got, missingVariable{line, name}) })
	if want := []missingVariable{{2, "def"}, {6, "last"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v %v, want %v", got, err, want)
	}
}
