package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/promises"
)

const promisesFile = "http-api.txt"

// promiseLines returns a line for each operation of the OpenAPI description of the routes, and for each of its parameters and the fields of its
// bodies. A schema with the name of a type of Nomad's Go client has lines of its own.
func promiseLines(t *testing.T, routes []route) []string {
	t.Helper()
	text, err := json.Marshal(newOpenAPIDocument(routes))
	if err != nil {
		t.Fatal(err)
	}
	var d openAPIDocument
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	for path, methods := range d.Paths {
		for method, op := range methods {
			name := strings.ToUpper(method) + " " + path
			d.lines = append(d.lines, name)
			for _, p := range op.Parameters {
				if p.In == "query" && !slices.Contains(strings.Fields(paramsOfAllRoutes), p.Name) {
					d.lines = append(d.lines, fmt.Sprintf("%s, parameter %s: %v", name, p.Name, p.Schema.Type))
				}
			}
			for kind, content := range op.RequestBody.Content {
				d.addBody(name+", request "+kind, content.Schema)
			}
			for kind, content := range op.Responses["200"].Content {
				d.addBody(name+", response "+kind, content.Schema)
			}
		}
	}
	for name := range strings.FieldsSeq(paramsOfAllRoutes) {
		d.lines = append(d.lines, fmt.Sprintf("each operation, parameter %s: %s", name, queryParameters[name].kind))
	}
	for name, s := range d.Components.Schemas {
		if isNomadType(name) {
			d.addFields("schema "+name+", ", s, []string{name})
		}
	}
	slices.Sort(d.lines)
	return d.lines
}

type openAPIDocument struct {
	Paths map[string]map[string]struct {
		Parameters []struct {
			Name, In string
			Schema   openAPISchema
		}
		RequestBody struct{ Content map[string]openAPIContent }
		Responses   map[string]struct{ Content map[string]openAPIContent }
	}
	Components struct{ Schemas map[string]openAPISchema }

	lines []string
}

type openAPIContent struct{ Schema openAPISchema }

type openAPISchema struct {
	Type                 any
	Format               string
	ContentEncoding      string
	Ref                  string `json:"$ref"`
	OneOf                []openAPISchema
	Items                *openAPISchema
	Properties           map[string]openAPISchema
	AdditionalProperties *openAPISchema
}

// isNomadType reports whether a schema has the name of a type of Nomad's Go client. Names of other types have a package, and can change.
func isNomadType(schemaName string) bool { return !strings.Contains(schemaName, ".") }

func (d *openAPIDocument) addBody(name string, s openAPISchema) {
	d.lines = append(d.lines, name+": "+d.typeText(s))
	d.addFields(name+", ", s, nil)
}

// addFields adds the fields of a schema, with those of the objects in it that are no types of Nomad's Go client. within has the names of the
// schemas that contain s, because some are recursive.
func (d *openAPIDocument) addFields(prefix string, s openAPISchema, within []string) {
	if name := strings.TrimPrefix(s.Ref, schemaPath); s.Ref != "" {
		if !isNomadType(name) && !slices.Contains(within, name) {
			d.addFields(prefix, d.Components.Schemas[name], append(slices.Clone(within), name))
		}
		return
	}
	for _, one := range s.OneOf {
		d.addFields(prefix, one, within)
	}
	if s.Items != nil {
		d.addFields(prefix+"[].", *s.Items, within)
	}
	if s.AdditionalProperties != nil {
		d.addFields(prefix+"{}.", *s.AdditionalProperties, within)
	}
	for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[field]
		d.lines = append(d.lines, prefix+"field "+field+": "+d.typeText(property))
		d.addFields(prefix+"field "+field+".", property, within)
	}
}

const schemaPath = "#/components/schemas/"

func (d *openAPIDocument) typeText(s openAPISchema) string {
	switch {
	case s.Ref != "":
		if name := strings.TrimPrefix(s.Ref, schemaPath); isNomadType(name) {
			return name
		}
		return "object"
	case len(s.OneOf) > 0:
		return d.typeText(s.OneOf[0]) + " or null"
	case s.Items != nil:
		return "array of " + d.typeText(*s.Items)
	case s.AdditionalProperties != nil:
		return "map of " + d.typeText(*s.AdditionalProperties)
	case s.Format != "":
		return s.Format
	case s.ContentEncoding != "":
		return s.ContentEncoding
	case s.Type == nil:
		return "any"
	}
	return fmt.Sprint(s.Type)
}

func TestReferenceAPIPromises(t *testing.T) {
	promises.Check(t, promisesFile, promiseLines(t, newFixture(t, nil).routes))
}

func TestChangedAPIBreaksPromises(t *testing.T) {
	routes := newFixture(t, nil).routes
	withChange := func(pattern string, edit func(*route)) []string {
		changed := slices.Clone(routes)
		at := slices.IndexFunc(changed, func(rt route) bool { return rt.pattern == pattern && rt.spaceSeparatedMethods == "GET" })
		edit(&changed[at])
		return promiseLines(t, changed)
	}
	promises.CheckOnly(t, promisesFile, withChange("/v1/jobs", func(rt *route) {
		rt.params = slices.DeleteFunc(slices.Clone(rt.params), func(name string) bool { return name == "meta" })
	}), "GET /v1/jobs, parameter meta")
}
