package hclspec

import "testing"

func TestTextShowsEachPartOfBlock(t *testing.T) {
	nested := Object(map[string]*Spec{"source": Attr("source", "string", true), "read_only": Default(Attr("read_only", "bool", false), Literal("false"))})
	for name, test := range map[string]struct {
		spec *Spec
		want string
	}{
		"nil":     {nil, ""},
		"nothing": {Object(nil), ""},
		"arguments are aligned, and sorted by name": {
			Object(map[string]*Spec{"b": Attr("retries", "number", false), "a": Attr("image", "string", true), "c": Attr("args", "list(string)", false)}), `
args    = list(string)
image   = string # required
retries = number
`},
		"an argument has the name of its key": {Object(map[string]*Spec{"image": Attr("", "string", false)}), `
image = string
`},
		"defaults": {
			Object(map[string]*Spec{
				"text":  Default(Attr("text", "string", true), Literal(`"x"`)),
				"lines": Default(Attr("lines", "any", false), Literal("{\n  a = 1\n}")),
				"other": Default(Attr("other", "string", false), Attr("text", "string", false)),
				"gc":    Default(Block("gc", Object(nil), false), Literal("{}")),
				"fixed": Literal("5"),
			}), `
lines = any    # default: { a = 1 }
other = string # default: the value of text
text  = string # required, default: "x"

gc { # optional, default: {}
}
`},
		"blocks follow arguments": {
			Object(map[string]*Spec{
				"a": BlockList("mount", nested, 0, 0), "b": BlockSet("set", nested, 2, 3), "c": Block("auth", Object(nil), true),
				"d": BlockMap("device", []string{"name", "kind"}, Attr("path", "string", false)),
				"e": BlockAttrs("labels", "string", false), "f": BlockList("least", Object(nil), 1, 0), "g": BlockList("most", Object(nil), 0, 4),
				"z": Attr("z", "bool", false), "array": Array(Attr("y", "bool", false)),
			}), `
y = bool
z = bool

auth { # required
}

device "name" "kind" { # any number
  path = string
}

labels { # optional
  NAME = string # any number, with any names
}

least { # at least 1
}

most { # at most 4
}

mount { # any number
  read_only = bool   # default: false
  source    = string # required
}

set { # 2 to 3
  read_only = bool   # default: false
  source    = string # required
}
`},
	} {
		t.Run(name, func(t *testing.T) {
			want := test.want
			if want != "" {
				want = want[1:]
			}
			if got := test.spec.Text(); got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func TestTextOfInvalidSpecsEnds(t *testing.T) {
	endless := &Spec{kind: KindDefault}
	endless.nested, endless.defaultSpec = &Spec{kind: KindBlock, name: "b", nested: endless}, nil
	if endless.Text() == "" {
		t.Error("no text")
	}
	for _, s := range []*Spec{{}, Object(map[string]*Spec{"a": nil}), Array(nil, Attr("", "string", false)), Default(nil, nil), Block("b", nil, false)} {
		_ = s.Text()
	}
}
