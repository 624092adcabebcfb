package jobspec

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty/gocty"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/hclspec/jsonschema"
)

// driverSchemasKeyword is the keyword of a JSON Schema under which JSONSchema stores the schemas of drivers in the
// form of hclspec. Other readers of the schema ignore it.
const driverSchemasKeyword = "x-nomad-lite-drivers"

// JSONSchema returns the JSON Schema of job files in HCL's JSON profile. configSpecByDriver has the schemas of the
// config blocks of tasks by the name of the driver. The config block of another driver, or of a driver whose schema is
// nil, can have any content.
//
// The schema accepts each file that Parse accepts, except for blocks in nested lists. It does not have the rules
// about values, such as the checks of package model.
func JSONSchema(configSpecByDriver map[string]*hclspec.Spec) jsonschema.Schema {
	g := &schemaGenerator{definitions: jsonschema.Definitions(), descriptions: readDescriptions()}
	files := map[string]jsonschema.Schema{"job": g.defineBodySchemaAndRef(reflect.TypeFor[api.Job]())}
	for _, open := range []string{"variables", "locals"} {
		files[open] = jsonschema.BodyOfAnyNames(jsonschema.Schema{})
	}
	validation := newBodySchema(validationSchema, nil, nil)
	files["variable"] = newBodySchema(variableSchema, nil, map[string]jsonschema.Schema{"validation": validation})
	g.addDriverConfigSchemas(configSpecByDriver)
	schema := newBodySchema(fileSchema, nil, files)
	schema["$schema"] = jsonschema.Draft
	schema["title"] = "Nomad job file in the JSON syntax of HCL"
	schema["$defs"] = g.definitions
	schema[driverSchemasKeyword] = configSpecByDriver
	return schema
}

// ReadDriverSchemas returns the schemas of the config blocks of the drivers in an encoded result of JSONSchema.
func ReadDriverSchemas(jsonSchema []byte) (map[string]*hclspec.Spec, error) {
	var document map[string]json.RawMessage
	if err := json.Unmarshal(jsonSchema, &document); err != nil {
		return nil, err
	}
	if document[driverSchemasKeyword] == nil {
		return nil, errors.New("it has no schemas of drivers: it was not written by nomad-lite job schema")
	}
	var messages map[string]json.RawMessage
	if err := json.Unmarshal(document[driverSchemasKeyword], &messages); err != nil {
		return nil, fmt.Errorf("%s: %w", driverSchemasKeyword, err)
	}
	drivers := make(map[string]*hclspec.Spec, len(messages))
	for name, message := range messages {
		var err error
		if drivers[name], err = hclspec.FromJSON(message); err != nil {
			return nil, fmt.Errorf("%s: driver %q: %w", driverSchemasKeyword, name, err)
		}
	}
	return drivers, nil
}

// schemaGenerator makes a definition for each struct type that the decoder decodes.
type schemaGenerator struct {
	definitions  map[string]jsonschema.Schema
	descriptions map[string]attributeDescription // by descriptionKey
}

// defineBodySchemaAndRef returns a reference to the schema of a body that is decoded into a struct type.
func (g *schemaGenerator) defineBodySchemaAndRef(t reflect.Type) jsonschema.Schema {
	if g.definitions[t.Name()] == nil {
		g.definitions[t.Name()] = jsonschema.Schema{} // ends the recursion for a type that contains itself
		g.definitions[t.Name()] = g.newStructBodySchema(t)
	}
	return jsonschema.Ref(t.Name())
}

func (g *schemaGenerator) newStructBodySchema(t reflect.Type) jsonschema.Schema {
	plan, schema := decodePlanOf(t), bodySchemaOf(t)
	values := make(map[string]jsonschema.Schema)
	for _, f := range plan.attrs {
		values[f.hclName] = attributeSchema(t.Field(f.structIndex).Type)
	}
	bodies := make(map[string]jsonschema.Schema)
	for _, f := range plan.blocks {
		bodies[f.hclName] = g.blockContentSchema(t.Field(f.structIndex).Type)
	}
	for _, block := range typeExtensions[t].extraBlocks {
		bodies[block.Type] = g.defineBodySchemaAndRef(block.contentStructType)
	}
	body := newBodySchema(preferBlocksToAttributes(schema), values, bodies)
	g.addDescriptions(t, body["properties"].(map[string]jsonschema.Schema))
	if len(schema.Blocks) > 0 {
		body["properties"].(map[string]jsonschema.Schema)["dynamic"] = g.dynamicBlocksSchema(schema.Blocks, bodies)
	}
	return body
}

// addDescriptions adds the descriptions of attributes and blocks of a struct type, which editors show. It copies each schema,
// because several attributes can share one.
func (g *schemaGenerator) addDescriptions(t reflect.Type, properties map[string]jsonschema.Schema) {
	for name, schema := range properties {
		if d, ok := g.descriptions[descriptionKey(t, name)]; ok {
			schema = maps.Clone(schema)
			schema["description"] = strings.TrimSpace(d.text + " " + d.difference)
			properties[name] = schema
		}
	}
}

// blockContentSchema returns the schema of the content of a block that is decoded into a field of this type.
func (g *schemaGenerator) blockContentSchema(field reflect.Type) jsonschema.Schema {
	if element := blockStructType(field); element != nil {
		return g.defineBodySchemaAndRef(element)
	}
	return jsonschema.BodyOfAnyNames(attributeSchema(field.Elem()))
}

// attributeSchema returns the schema of an attribute that decodeAttribute decodes.
func attributeSchema(field reflect.Type) jsonschema.Schema {
	if field == durationType || field == reflect.PointerTo(durationType) {
		return jsonschema.Duration()
	}
	ty, err := gocty.ImpliedType(reflect.New(field).Interface())
	if err != nil {
		return jsonschema.Schema{} // a type without a schema, such as map[string]any
	}
	return jsonschema.OfType(ty)
}

// newBodySchema returns the schema of a body. valueSchemaByAttribute and contentSchemaByBlock have the schemas of its
// attributes and of the content of its blocks. An attribute that is not in valueSchemaByAttribute can have any value.
func newBodySchema(schema *hcl.BodySchema, valueSchemaByAttribute, contentSchemaByBlock map[string]jsonschema.Schema) jsonschema.Schema {
	properties := make(map[string]jsonschema.Schema)
	var required []string
	for _, attr := range schema.Attributes {
		properties[attr.Name] = valueSchemaByAttribute[attr.Name]
		if valueSchemaByAttribute[attr.Name] == nil {
			properties[attr.Name] = jsonschema.Schema{}
		}
		if attr.Required {
			required = append(required, attr.Name)
		}
	}
	for _, block := range schema.Blocks {
		properties[block.Type] = jsonschema.Blocks(len(block.LabelNames), contentSchemaByBlock[block.Type])
	}
	return jsonschema.Body(properties, required)
}

// dynamicBlocksSchema returns the schema of the dynamic blocks that generate blocks of these types.
func (g *schemaGenerator) dynamicBlocksSchema(blocks []hcl.BlockHeaderSchema, contentSchemaByBlock map[string]jsonschema.Schema) jsonschema.Schema {
	generators := make(map[string]jsonschema.Schema)
	for _, block := range blocks {
		generators[block.Type] = g.dynamicBlockSchema(contentSchemaByBlock[block.Type], len(block.LabelNames) > 0)
	}
	labelled := jsonschema.Schema{"type": "object", "properties": generators, "additionalProperties": false}
	return jsonschema.Schema{"anyOf": []jsonschema.Schema{labelled, {"type": "array", "items": labelled}}}
}

// dynamicBlockSchema returns the schema of the dynamic blocks that generate blocks with this content. It is a definition if
// the content is a definition, because many bodies have such blocks.
func (g *schemaGenerator) dynamicBlockSchema(content jsonschema.Schema, hasLabels bool) jsonschema.Schema {
	properties := map[string]jsonschema.Schema{"for_each": {}, "iterator": jsonschema.Ref("string"), "content": jsonschema.Blocks(0, content)}
	required := []string{"for_each", "content"}
	prefix := "dynamic."
	if hasLabels {
		properties["labels"] = jsonschema.Schema{"type": "array"}
		required = append(required, "labels")
		prefix = "dynamic.labelled."
	}
	generator := jsonschema.Blocks(0, jsonschema.Body(properties, required))
	name, isDefinition := content.Definition()
	if !isDefinition {
		return generator
	}
	g.definitions[prefix+name] = generator
	return jsonschema.Ref(prefix + name)
}

// addDriverConfigSchemas adds the schemas of config blocks to the definition of a task.
func (g *schemaGenerator) addDriverConfigSchemas(configSpecByDriver map[string]*hclspec.Spec) {
	var conditions []jsonschema.Schema
	for _, name := range slices.Sorted(maps.Keys(configSpecByDriver)) {
		if configSpecByDriver[name] == nil {
			continue
		}
		definition := "config." + name
		g.definitions[definition] = block.JSONSchema(configSpecByDriver[name])
		isDriver := map[string]jsonschema.Schema{"driver": {"const": name}}
		config := map[string]jsonschema.Schema{"config": jsonschema.Blocks(0, jsonschema.Ref(definition))}
		conditions = append(conditions, jsonschema.Schema{
			"if":   jsonschema.Schema{"properties": isDriver, "required": []string{"driver"}},
			"then": jsonschema.Schema{"properties": config},
		})
	}
	if len(conditions) > 0 {
		g.definitions[reflect.TypeFor[api.Task]().Name()]["allOf"] = conditions
	}
}
