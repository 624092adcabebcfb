package hclspec

import "github.com/nomad-lite/nomad-lite/hclspec/jsonschema"

// JSONSchema returns the JSON Schema of the block in the JSON syntax of HCL. It accepts each block that Check accepts,
// and rejects most others: it does not compare how often a block occurs with the limits. The parts of an invalid
// Spec accept any value.
func (s *Spec) JSONSchema() jsonschema.Schema { return s.jsonSchema(maxSpecDepth) }

func (s *Spec) jsonSchema(depth int) jsonschema.Schema {
	if depth == 0 {
		return jsonschema.Schema{}
	}
	arguments, blocks := s.bodyParts()
	properties := make(map[string]jsonschema.Schema, len(arguments)+len(blocks))
	var required []string
	for _, p := range arguments {
		properties[p.name] = p.argumentSchema()
	}
	for _, p := range blocks {
		properties[p.name] = p.blocksSchema(depth)
	}
	for _, p := range append(arguments, blocks...) {
		if minimum, _ := p.spec.limits(); p.spec.required || minimum > 0 {
			required = append(required, p.name)
		}
	}
	return jsonschema.Body(properties, required)
}

func (p part) argumentSchema() jsonschema.Schema {
	return p.withDefault(jsonschema.OfType(newCompiler().parseType(p.spec, p.name)))
}

func (p part) blocksSchema(depth int) jsonschema.Schema {
	var body jsonschema.Schema
	if p.spec.kind == kindBlockAttrs {
		body = jsonschema.BodyOfAnyNames(jsonschema.OfType(newCompiler().parseType(p.spec, p.name)))
	} else {
		body = p.spec.nested.jsonSchema(depth - 1)
	}
	return p.withDefault(jsonschema.Blocks(len(p.spec.labels), body))
}

// withDefault adds the default to the description, which editors show.
func (p part) withDefault(s jsonschema.Schema) jsonschema.Schema {
	if p.defaultText != "" {
		s["description"] = "default: " + p.defaultText
	}
	return s
}
