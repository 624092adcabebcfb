package output

import (
	"strings"
	"testing"
)

type templateObject struct {
	Name   string
	Status string
	Update *templatePart
	Tags   []string
}

type templatePart struct{ MaxParallel int }

func TestTemplateErrorsNameTheField(t *testing.T) {
	list := []*templateObject{{Name: "web"}}
	for name, c := range map[string]struct {
		value    any
		template string
		want     string
	}{
		"a syntax error has its line":          {list, "{{range .}}", "1: unexpected EOF"},
		"an unknown function":                  {list, "{{nope .}}", `1: function "nope" not defined`},
		"a field of a list":                    {list, "{{.Name}}", `1:2: <.Name>: the value is a list and has no field "Name": write {{range .}}{{.Name}}{{end}}`},
		"a field in other case":                {list, "{{range .}}{{.name}}{{end}}", `1:13: <.name>: there is no field "name": did you mean "Name"?`},
		"a field that does not exist":          {list, "{{range .}}{{.Nope}}{{end}}", `1:13: <.Nope>: there is no field "Nope"; there are Name, Status, Tags, Update`},
		"a field of a nested object":           {&templateObject{Update: &templatePart{}}, "{{.Update.Nope}}", `1:9: <.Update.Nope>: there is no field "Nope"; there are MaxParallel`},
		"a field of an object that is not set": {list, "{{range .}}{{.Update.MaxParallel}}{{end}}", `1:20: <.Update.MaxParallel>: there is no field "MaxParallel", because the object before it is not set: test it first, as in {{with .Object}}{{.MaxParallel}}{{end}}`},
		"a field of a string":                  {list, "{{range .}}{{.Name.First}}{{end}}", `1:18: <.Name.First>: there is no field "First": the value has no fields`},
		"range over one object":                {list[0], "{{range .}}{{.}}{{end}}", `1:8: <.>: range needs a list or a map, and this is one value: leave range out`},
		"an index out of range":                {list, "{{index . 3}}", `1:2: <index . 3>: error calling index: index out of range: 3`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := executeTemplate(c.template, c.value)
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "output.") {
				t.Errorf("%v names a type of Go", err)
			}
		})
	}
}
