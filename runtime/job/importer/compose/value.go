package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
)

// kind is the kind of a value.
type kind int

const (
	null kind = iota
	scalar
	list
	mapping
)

// value is a value of a compose file, with its position. Anchors, merge keys and variables are replaced.
type value struct {
	at       importer.Position
	kind     kind
	text     string // of a scalar
	isString bool   // the scalar is a string, not a number, a truth value or the like
	items    []*value
	keys     []string // of a mapping, in the order of the file
	fields   map[string]*value
	tag      string // resetTag, overrideTag or empty
}

const (
	resetTag    = "!reset"
	overrideTag = "!override"
)

// maxValues limits the values of all files: aliases can make a short file huge.
const maxValues = 200_000

// maxDepth limits the nesting of values.
const maxDepth = 100

// get returns a field of a mapping. It returns nil if the value has no such field, or is null.
func (v *value) get(key string) *value {
	if v == nil || v.fields[key] == nil || v.fields[key].kind == null {
		return nil
	}
	return v.fields[key]
}

// set adds or replaces a field.
func (v *value) set(key string, field *value) {
	if v.fields[key] == nil {
		v.keys = append(v.keys, key)
	}
	v.fields[key] = field
}

func (v *value) remove(key string) {
	delete(v.fields, key)
	v.keys = slices.DeleteFunc(v.keys, func(k string) bool { return k == key })
}

// clone returns a copy whose lists and mappings can be changed.
func (v *value) clone() *value {
	if v == nil {
		return nil
	}
	c := *v
	c.keys, c.items = slices.Clone(v.keys), nil
	for _, item := range v.items {
		c.items = append(c.items, item.clone())
	}
	c.fields = maps.Clone(v.fields)
	for key, field := range c.fields {
		c.fields[key] = field.clone()
	}
	return &c
}

func newScalar(at importer.Position, text string) *value {
	return &value{at: at, kind: scalar, text: text, isString: true}
}

func newMapping(at importer.Position) *value {
	return &value{at: at, kind: mapping, fields: map[string]*value{}}
}

// yamlReader converts the nodes of one file.
type yamlReader struct {
	file     string
	count    *int
	visiting map[*yaml.Node]bool // aliases that are being followed
	replace  func(at importer.Position, text string) (string, error)
}

func (r *yamlReader) position(n *yaml.Node) importer.Position {
	return importer.Position{File: r.file, Line: n.Line}
}

func (r *yamlReader) convert(n *yaml.Node, depth int) (*value, error) {
	at := r.position(n)
	if *r.count++; *r.count > maxValues {
		return nil, importer.Errorf(at, "the files have more than %d values", maxValues)
	}
	if depth > maxDepth {
		return nil, importer.Errorf(at, "values are nested more than %d levels deep", maxDepth)
	}
	v := &value{at: at}
	switch n.Tag {
	case resetTag, overrideTag:
		v.tag = n.Tag
	}
	switch n.Kind {
	case yaml.AliasNode:
		if r.visiting[n.Alias] {
			return nil, importer.Errorf(at, "the anchor %q contains itself", n.Value)
		}
		r.visiting[n.Alias] = true
		defer delete(r.visiting, n.Alias)
		return r.convert(n.Alias, depth+1)
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return v, nil
		}
		text, err := r.replace(at, n.Value)
		if err != nil {
			return nil, err
		}
		v.kind, v.text, v.isString = scalar, text, n.Tag == "!!str"
	case yaml.SequenceNode:
		v.kind = list
		for _, item := range n.Content {
			converted, err := r.convert(item, depth+1)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, converted)
		}
	case yaml.MappingNode:
		v.kind, v.fields = mapping, map[string]*value{}
		return v, r.convertFields(v, n, depth)
	default:
		return nil, importer.Errorf(at, "the value is of an unknown kind")
	}
	return v, nil
}

// convertFields adds the fields of a mapping, and then those of its merge keys that it lacks.
func (r *yamlReader) convertFields(v *value, n *yaml.Node, depth int) error {
	var merged []*value
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, content := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			return importer.Errorf(r.position(key), "a key must be a text")
		}
		field, err := r.convert(content, depth+1)
		if err != nil {
			return err
		}
		if key.Tag == "!!merge" {
			switch field.kind {
			case mapping:
				merged = append(merged, field)
			case list:
				merged = append(merged, field.items...)
			default:
				return importer.Errorf(field.at, "the value of << must be a mapping")
			}
			continue
		}
		if v.fields[key.Value] != nil {
			return importer.Errorf(r.position(key), "the key %q is there twice", key.Value)
		}
		if n.Content[i+1].Kind != yaml.AliasNode {
			field.at = r.position(key)
		}
		v.set(key.Value, field)
	}
	for _, m := range merged {
		if m.kind != mapping {
			return importer.Errorf(m.at, "the value of << must be a mapping")
		}
		for _, key := range m.keys {
			if v.fields[key] == nil {
				v.set(key, m.fields[key])
			}
		}
	}
	return nil
}

// asText returns the text of a scalar.
func (v *value) asText() (string, error) {
	if v.kind != scalar {
		return "", importer.Errorf(v.at, "the value must be a text, not a %s", v.kind)
	}
	return v.text, nil
}

func (k kind) String() string {
	return [...]string{"null", "text", "list", "mapping"}[k]
}

// asTexts returns the texts of a list, or of a single text.
func (v *value) asTexts() ([]string, error) {
	if v == nil || v.kind == null {
		return nil, nil
	}
	if v.kind == scalar {
		return []string{v.text}, nil
	}
	if v.kind != list {
		return nil, importer.Errorf(v.at, "the value must be a list of texts, not a %s", v.kind)
	}
	texts := make([]string, 0, len(v.items))
	for _, item := range v.items {
		text, err := item.asText()
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// asBool returns a truth value in the forms of YAML 1.1 and of strings of compose.
func (v *value) asBool() (bool, error) {
	if v == nil || v.kind == null {
		return false, nil
	}
	switch strings.ToLower(v.text) {
	case "true", "yes", "on", "y", "1":
		return true, nil
	case "false", "no", "off", "n", "0":
		return false, nil
	}
	return false, importer.Errorf(v.at, "the value must be true or false")
}

// toMapping returns a mapping for a mapping, or for a list of texts "KEY=VALUE", "KEY:VALUE" or "KEY", split at separator. A key without a value
// gets the value null.
func (v *value) toMapping(separator string) (*value, error) {
	if v.kind == mapping || v.kind == null {
		return v, nil
	}
	if v.kind != list {
		return nil, importer.Errorf(v.at, "the value must be a mapping or a list, not a %s", v.kind)
	}
	m := newMapping(v.at)
	m.tag = v.tag
	for _, item := range v.items {
		text, err := item.asText()
		if err != nil {
			return nil, err
		}
		key, rest, found := strings.Cut(text, separator)
		field := &value{at: item.at}
		if found {
			field = newScalar(item.at, rest)
		}
		m.set(key, field)
	}
	return m, nil
}

// errAt adds a position to an error that has none.
func errAt(at importer.Position, err error) error {
	if err == nil {
		return nil
	}
	return importer.Errorf(at, "%w", err)
}

// describe returns a short description of an unexpected value.
func describe(v *value) string {
	if v.kind == scalar {
		return fmt.Sprintf("%q", v.text)
	}
	return "a " + v.kind.String()
}
