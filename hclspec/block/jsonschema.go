package block

import (
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/jsonschema"
)

// JSONSchema returns the JSON Schema of the block in the JSON syntax of HCL. It accepts each block that Check accepts,
// and rejects most others: it does not compare how often a block occurs with the limits. The parts of an invalid
// Spec accept any value.
func JSONSchema(s *hclspec.Spec) jsonschema.Schema { return jsonSchema(s, hclspec.MaxDepth) }

func jsonSchema(s *hclspec.Spec, depth int) jsonschema.Schema {
	if depth == 0 {
		return jsonschema.Schema{}
	}
	arguments, blocks := s.Parts()
	properties := make(map[string]jsonschema.Schema, len(arguments)+len(blocks))
	var required []string
	for _, p := range arguments {
		properties[p.Name] = argumentSchema(p)
	}
	for _, p := range blocks {
		properties[p.Name] = blocksSchema(p, depth)
	}
	for _, p := range append(arguments, blocks...) {
		if s := p.Spec.Node(); s.Required || s.Min > 0 {
			required = append(required, p.Name)
		}
	}
	return jsonschema.Body(properties, required)
}

func argumentSchema(p hclspec.Part) jsonschema.Schema {
	return withDefault(p, jsonschema.OfType(newCompiler().parseType(p.Spec.Node(), p.Name)))
}

func blocksSchema(p hclspec.Part, depth int) jsonschema.Schema {
	var body jsonschema.Schema
	if p.Spec.Node().Kind == hclspec.KindBlockAttrs {
		body = jsonschema.BodyOfAnyNames(jsonschema.OfType(newCompiler().parseType(p.Spec.Node(), p.Name)))
	} else {
		body = jsonSchema(p.Spec.Node().Nested, depth-1)
	}
	return withDefault(p, jsonschema.Blocks(len(p.Spec.Node().Labels), body))
}

// withDefault adds the default to the description, which editors show.
func withDefault(p hclspec.Part, s jsonschema.Schema) jsonschema.Schema {
	if p.DefaultText != "" {
		s["description"] = "default: " + p.DefaultText
	}
	return s
}
