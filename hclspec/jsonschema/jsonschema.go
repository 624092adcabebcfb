package jsonschema

import (
	"maps"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
)

// Draft is the value of $schema in a document with the schemas of this package.
const Draft = "https://json-schema.org/draft/2020-12/schema"

// Schema is a JSON Schema. An empty Schema accepts any value.
type Schema map[string]any

// anyOf is the keyword for alternatives.
const anyOf = "anyOf"

const (
	durationPattern = `^[-+]?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$|^[-+]?0$`
	numberPattern   = `^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$`
	boolPattern     = `^(true|false|0|1)$`
	templatePattern = `[$%]\{`
)

// definitions are the schemas of types, by name.
var definitions = map[string]Schema{
	"string":   {"type": []string{"string", "number", "boolean", "null"}},
	"number":   {anyOf: []Schema{{"type": []string{"number", "null"}}, {"type": "string", "pattern": numberPattern + "|" + templatePattern}}},
	"bool":     {anyOf: []Schema{{"type": []string{"boolean", "null"}}, {"type": "string", "pattern": boolPattern + "|" + templatePattern}}},
	"duration": {anyOf: []Schema{{"type": "integer"}, {"type": "string", "pattern": durationPattern + "|" + templatePattern}}},
	"template": {"type": "string", "pattern": templatePattern},
}

// Definitions returns the $defs to which the schemas of this package refer.
func Definitions() map[string]Schema { return maps.Clone(definitions) }

// definitionPrefix is the path of the definitions in a document.
const definitionPrefix = "#/$defs/"

// Ref returns a schema that refers to a definition of the document.
func Ref(definition string) Schema { return Schema{"$ref": definitionPrefix + definition} }

// Definition returns the name of the definition to which s refers, and whether s is a reference.
func (s Schema) Definition() (name string, ok bool) {
	ref, _ := s["$ref"].(string)
	return strings.CutPrefix(ref, definitionPrefix)
}

// Duration returns the schema of a duration: a text with units, or nanoseconds.
func Duration() Schema { return Ref("duration") }

// OfType returns the schema of an argument of the type ty, or of a template for it.
func OfType(ty cty.Type) Schema {
	switch {
	case ty == cty.String:
		return Ref("string")
	case ty == cty.Number:
		return Ref("number")
	case ty == cty.Bool:
		return Ref("bool")
	case ty.IsListType(), ty.IsSetType():
		return orTemplate(Schema{"type": []string{"array", "null"}, "items": OfType(ty.ElementType())})
	case ty.IsMapType():
		return orTemplate(Schema{"type": []string{"object", "null"}, "additionalProperties": OfType(ty.ElementType())})
	case ty.IsTupleType():
		items := []Schema{}
		for _, element := range ty.TupleElementTypes() {
			items = append(items, OfType(element))
		}
		return orTemplate(Schema{"type": []string{"array", "null"}, "prefixItems": items, "minItems": len(items), "maxItems": len(items)})
	case ty.IsObjectType():
		properties, required := make(map[string]Schema), []string{}
		for _, name := range slices.Sorted(maps.Keys(ty.AttributeTypes())) {
			properties[name] = OfType(ty.AttributeType(name))
			if !ty.AttributeOptional(name) {
				required = append(required, name)
			}
		}
		return orTemplate(Schema{"type": []string{"object", "null"}, "properties": properties, "required": required})
	}
	return Schema{}
}

func orTemplate(s Schema) Schema { return Schema{anyOf: []Schema{s, Ref("template")}} }

// Body returns the schema of the content of a block or a file. It adds the property "//", a comment.
func Body(properties map[string]Schema, required []string) Schema {
	properties = maps.Clone(properties)
	properties["//"] = Schema{"description": "a comment"}
	body := Schema{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		body["required"] = slices.Sorted(slices.Values(required))
	}
	return body
}

// BodyOfAnyNames returns the schema of the content of a block whose arguments can have any name.
func BodyOfAnyNames(argument Schema) Schema {
	if len(argument) == 0 {
		return Schema{"type": "object"}
	}
	return Schema{"type": "object", "properties": map[string]Schema{"//": {"description": "a comment"}}, "additionalProperties": argument}
}

// Blocks returns the schema of all blocks of one type in a body. labels is the number of their labels.
func Blocks(labels int, body Schema) Schema {
	if labels == 0 {
		return Schema{anyOf: []Schema{body, {"type": "array", "items": body}, {"type": "null"}}}
	}
	labelled := Schema{"type": "object", "additionalProperties": Blocks(labels-1, body)}
	return Schema{anyOf: []Schema{labelled, {"type": "array", "items": labelled}}}
}
