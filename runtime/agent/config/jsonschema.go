package config

import (
	"reflect"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec/jsonschema"
)

// JSONSchema returns the JSON Schema of configuration files in JSON.
//
// The schema accepts each file that Parse accepts without a warning about an unknown name. It has the names and types of all
// settings, but not the rules about their values. A setting that is ignored is deprecated in the schema, with the reason.
func JSONSchema() jsonschema.Schema {
	g := &schemaGenerator{definitions: make(map[string]jsonschema.Schema)}
	schema := g.settings("", topLevelSettings)
	properties := schema["properties"].(map[string]jsonschema.Schema)
	properties["plugin"] = g.labelled("plugin", pluginSettingNames, map[string]jsonschema.Schema{
		"args": listSchema(), "env_allowlist": listSchema(), "config": g.blocks("any", jsonschema.Schema{"type": "object"}),
		"sha256": {"type": "string", "pattern": "^[0-9A-Fa-f]{64}$"},
	})
	properties[schemaName] = jsonschema.Schema{"type": "string"}
	schema["$schema"] = jsonschema.Draft
	schema["title"] = "Configuration of a nomad-lite agent in JSON"
	schema["$defs"] = g.definitions
	return schema
}

// schemaName is the name of a property of JSON files by which editors find the schema.
const schemaName = "$schema"

// Patterns of texts that stand for values of other types.
const (
	durationText = `^\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$|^[-+]?0$`
	booleanText  = `^([01tTfF]|true|TRUE|True|false|FALSE|False)$`
)

// schemaGenerator makes a definition for the content of each block, because a block is an object or a list of objects.
type schemaGenerator struct{ definitions map[string]jsonschema.Schema }

// settings returns the schema of the content of a block. blockPath is the dotted name of the block.
func (g *schemaGenerator) settings(blockPath string, settings map[string]settingSpec) jsonschema.Schema {
	properties := make(map[string]jsonschema.Schema)
	for name, s := range settings {
		path := strings.TrimPrefix(blockPath+"."+name, ".")
		switch {
		case s.ignoredReason != "":
			properties[name] = jsonschema.Schema{"deprecated": true, "description": "Ignored: " + s.ignoredReason}
		case s.blockSettings != nil:
			properties[name] = g.blocks(path, g.settings(path, s.blockSettings))
		case s.valueType == nil:
			properties[name] = g.withoutType(path)
		default:
			properties[name] = g.value(s.valueType)
		}
	}
	return jsonschema.Schema{"type": "object", "properties": properties, "additionalProperties": false}
}

// value returns the schema of a setting whose parsed value has the type t.
func (g *schemaGenerator) value(t reflect.Type) jsonschema.Schema {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return anyOf(jsonschema.Schema{"type": "string", "pattern": durationText}, jsonschema.Schema{"type": "number"})
	case reflect.TypeFor[[]string]():
		return anyOf(listSchema(), scalarSchema())
	case reflect.TypeFor[map[string]string]():
		return g.stringMap()
	}
	switch t.Kind() {
	case reflect.Bool:
		return anyOf(jsonschema.Schema{"type": []string{"boolean", "number"}}, jsonschema.Schema{"type": "string", "pattern": booleanText})
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Float64:
		return anyOf(jsonschema.Schema{"type": "number"}, jsonschema.Schema{"type": "string"})
	case reflect.String:
		return scalarSchema()
	}
	return jsonschema.Schema{}
}

// withoutType returns the schema of a setting that has no type in the tables. path is its dotted name. A setting that is not
// listed here can have any value.
func (g *schemaGenerator) withoutType(path string) jsonschema.Schema {
	boolean := g.value(reflect.TypeFor[bool]())
	switch path {
	case "log_level":
		return anyOf(jsonschema.Schema{"enum": []string{"trace", "debug", "info", "warn", "error"}}, jsonschema.Schema{"type": "string", "pattern": `^\s*[A-Za-z]+\s*$`})
	case "acl.enabled", "client.enabled":
		return boolean
	case "client.options", "client.chroot_env":
		return g.stringMap()
	case "audit.sink":
		return g.labelled(path, auditSinkSettingNames, map[string]jsonschema.Schema{
			"delivery_guarantee": {"enum": []string{"best-effort", "enforced"}}, "format": {"enum": []string{"json"}}, "mode": scalarSchema(), "path": scalarSchema(),
			"rotate_bytes": g.value(reflect.TypeFor[int]()), "rotate_duration": g.value(reflect.TypeFor[time.Duration]()), "rotate_max_files": g.value(reflect.TypeFor[int]()),
			"type": {"enum": []string{"file"}},
		})
	case "audit.filter":
		list := g.value(reflect.TypeFor[[]string]())
		return g.labelled(path, auditFilterSettingNames, map[string]jsonschema.Schema{"endpoints": list, "operations": list, "stages": list, "type": {"enum": []string{"HTTPEvent"}}})
	case "client.host_network":
		return g.labelled(path, hostNetworkSettingNames, map[string]jsonschema.Schema{
			"cidr": scalarSchema(), "interface": scalarSchema(), "reserved_ports": scalarSchema(),
		})
	case "client.host_volume":
		return g.labelled(path, hostVolumeSettingNames, map[string]jsonschema.Schema{"path": scalarSchema(), "read_only": boolean, "allow_bidirectional": boolean, "csi": boolean, "per_alloc": boolean})
	case "hook":
		return g.labelled(path, hookSettingNames, map[string]jsonschema.Schema{
			"order": g.value(reflect.TypeFor[int]()), "timeout": g.value(reflect.TypeFor[time.Duration]()), "on_error": {"enum": []string{"fail", "warn"}},
			"config": g.blocks("any", jsonschema.Schema{"type": "object"}),
			"match": g.blocks("hook.match", bodySchema(hookMatchSettingNames, map[string]jsonschema.Schema{
				"job": scalarSchema(), "group": scalarSchema(), "driver": scalarSchema(), "meta": g.stringMap(),
			})),
		})
	}
	return jsonschema.Schema{}
}

// blocks returns the schema of a block, or of a list of such blocks. body is the schema of its content, which becomes the
// definition with the name.
func (g *schemaGenerator) blocks(definition string, body jsonschema.Schema) jsonschema.Schema {
	g.definitions[definition] = body
	ref := jsonschema.Ref(definition)
	return anyOf(ref, jsonschema.Schema{"type": "array", "items": ref, "minItems": 1})
}

// labelled returns the schema of blocks that users name, in which each setting of names has its schema.
func (g *schemaGenerator) labelled(block string, names []string, schemaByName map[string]jsonschema.Schema) jsonschema.Schema {
	return g.blocks(block, jsonschema.Schema{"type": "object", "additionalProperties": g.blocks(block+".NAME", bodySchema(names, schemaByName))})
}

func (g *schemaGenerator) stringMap() jsonschema.Schema {
	return g.blocks("strings", jsonschema.Schema{"type": "object", "additionalProperties": scalarSchema()})
}

func bodySchema(names []string, schemaByName map[string]jsonschema.Schema) jsonschema.Schema {
	properties := make(map[string]jsonschema.Schema, len(names))
	for _, name := range names {
		properties[name] = schemaByName[name]
	}
	return jsonschema.Schema{"type": "object", "properties": properties, "additionalProperties": false}
}

func listSchema() jsonschema.Schema {
	return jsonschema.Schema{"type": "array", "items": scalarSchema()}
}

// scalarSchema returns the schema of a value that is read as a text.
func scalarSchema() jsonschema.Schema {
	return jsonschema.Schema{"type": []string{"string", "number", "boolean"}}
}

func anyOf(alternatives ...jsonschema.Schema) jsonschema.Schema {
	return jsonschema.Schema{"anyOf": alternatives}
}
