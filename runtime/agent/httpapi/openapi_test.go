package httpapi

import (
	"encoding/json"
	"strings"
	"testing"
)

// The OpenAPI document has exactly the routes of the API, and each reference in the document has a target.
func TestOpenAPIDocument(t *testing.T) {
	f := newFixture(t, nil)
	r := f.send("GET", "/v1/openapi.json", nil)
	whole := bodyText(r)
	var d struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			Summary    string
			Parameters []struct{ Name, In, Description string }
			Responses  map[string]any
		}
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal([]byte(whole), &d); err != nil || r.StatusCode != 200 || d.OpenAPI == "" {
		t.Fatalf("status %d, %v", r.StatusCode, err)
	}
	described := 0
	for path, methods := range d.Paths {
		for method, op := range methods {
			described++
			where := strings.ToUpper(method) + " " + path
			asked := strings.NewReplacer("{", "", "}", "").Replace(path)
			if _, _, found, _ := findRoute(f.routes, strings.ToUpper(method), asked); !found {
				t.Errorf("%s is described and leads nowhere", where)
			}
			if op.Summary == "" || len(op.Responses) < 2 {
				t.Errorf("%s: nothing is said about it", where)
			}
			for _, p := range op.Parameters {
				if p.In == "path" && !strings.Contains(path, "{"+p.Name+"}") || p.In == "query" && p.Description == "" {
					t.Errorf("%s: parameter %q is not known", where, p.Name)
				}
			}
		}
	}
	routed := 0
	for _, rt := range f.routes {
		routed += len(strings.Fields(rt.spaceSeparatedMethods))
		for method := range strings.FieldsSeq(strings.ToLower(rt.spaceSeparatedMethods)) {
			if _, ok := d.Paths[strings.ReplaceAll(rt.pattern, "...}", "}")][method]; !ok {
				t.Errorf("%s %s is not described", method, rt.pattern)
			}
		}
	}
	if described != routed {
		t.Errorf("%d operations are described, %d are served", described, routed)
	}
	for _, part := range strings.Split(whole, `"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if d.Components.Schemas[name] == nil {
			t.Errorf("the schema %q is missing", name)
		}
	}
	if n := len(d.Components.Schemas); n < 50 {
		t.Errorf("only %d schemas", n)
	}
}
