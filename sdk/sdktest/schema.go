package sdktest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strconv"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// ConfigEncoder encodes the configurations of plugins and tasks as a host does. For hosts only.
type ConfigEncoder struct {
	// Msgpack and JSON return the encoded value of a config block. The error is for the author of the block.
	Msgpack func(schema *hclspec.Spec, block map[string]any) ([]byte, error)
	JSON    func(schema *hclspec.Spec, block map[string]any) ([]byte, error)
	// SchemaFault returns why a schema is invalid, or nil.
	SchemaFault func(schema *hclspec.Spec) error
}

// plainEncoder encodes without HCL: strings are no templates. Authors of plugins import this package for unit tests, and the
// modules of HCL would double the modules of a plugin.
var plainEncoder = ConfigEncoder{Msgpack: encodeMsgpack, JSON: encodeJSON, SchemaFault: schemaFault}

// configEncoder returns the encoder for the configurations of the plugin.
func (p *Plugin) configEncoder() ConfigEncoder {
	if p.ConfigEncoder != nil {
		return *p.ConfigEncoder
	}
	return plainEncoder
}

var msgpackHandle = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.WriteExt = true // the current version of msgpack, as hosts write it
	h.Canonical = true
	return h
}()

func encodeMsgpack(schema *hclspec.Spec, block map[string]any) (encoded []byte, err error) {
	value, err := decodeBlock(schema, block)
	if err != nil {
		return nil, err
	}
	err = codec.NewEncoderBytes(&encoded, msgpackHandle).Encode(replaceNumbers(value, func(n *big.Float) any {
		if i, accuracy := n.Int64(); accuracy == big.Exact {
			if i >= 0 {
				return uint64(i) // as hosts encode it
			}
			return i
		}
		if f, accuracy := n.Float64(); accuracy == big.Exact {
			return f
		}
		return n.Text('f', -1)
	}))
	return encoded, err
}

func encodeJSON(schema *hclspec.Spec, block map[string]any) ([]byte, error) {
	value, err := decodeBlock(schema, block)
	if err != nil {
		return nil, err
	}
	return json.Marshal(replaceNumbers(value, func(n *big.Float) any { return json.Number(n.Text('f', -1)) }))
}

func replaceNumbers(v any, replace func(*big.Float) any) any {
	switch v := v.(type) {
	case *big.Float:
		return replace(v)
	case []any:
		for i := range v {
			v[i] = replaceNumbers(v[i], replace)
		}
	case map[string]any:
		for key := range v {
			v[key] = replaceNumbers(v[key], replace)
		}
	}
	return v
}

// decodeBlock returns the value that the schema describes: nil, bool, string, *big.Float, []any or map[string]any.
func decodeBlock(schema *hclspec.Spec, block map[string]any) (any, error) {
	err := schema.Fault()
	if err == nil {
		err = expressionFault(schema, "config", false) // a host uses a default of a wrong type, too
	}
	if err != nil {
		return nil, fmt.Errorf("the schema: %w", err)
	}
	plain, err := normalize("the config", block)
	if err != nil {
		return nil, err
	}
	body, _ := plain.(map[string]any)
	namesErr := checkNames("", schema, body)
	value, err := decodePart(schema, "", "", body)
	return value, errors.Join(namesErr, err)
}

// normalize converts the Go values of a block to those that decodeBlock returns.
func normalize(path string, v any) (any, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case json.Number:
		return parseNumber(v.String())
	case string:
		text, err := unescapeTemplate(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return text, nil
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Bool:
		return r.Bool(), nil
	case reflect.String:
		return normalize(path, r.String())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return parseNumber(strconv.FormatInt(r.Int(), 10))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return parseNumber(strconv.FormatUint(r.Uint(), 10))
	case reflect.Float32, reflect.Float64:
		return parseNumber(strconv.FormatFloat(r.Float(), 'g', -1, r.Type().Bits()))
	case reflect.Pointer, reflect.Interface:
		if r.IsNil() {
			return nil, nil
		}
		return normalize(path, r.Elem().Interface())
	case reflect.Slice, reflect.Array:
		list := make([]any, r.Len())
		for i := range list {
			var err error
			if list[i], err = normalize(fmt.Sprintf("%s[%d]", path, i), r.Index(i).Interface()); err != nil {
				return nil, err
			}
		}
		return list, nil
	case reflect.Map:
		if r.Type().Key().Kind() != reflect.String {
			break
		}
		object := make(map[string]any, r.Len())
		for entries := r.MapRange(); entries.Next(); {
			key := entries.Key().String()
			var err error
			if object[key], err = normalize(path+"."+key, entries.Value().Interface()); err != nil {
				return nil, err
			}
		}
		return object, nil
	}
	return nil, fmt.Errorf("%s: a block has no value of the Go type %T", path, v)
}

// checkNames returns an error for a key of the body that the schema does not have.
func checkNames(path string, schema *hclspec.Spec, body map[string]any) error {
	arguments, blocks := schema.Parts()
	for _, key := range slices.Sorted(maps.Keys(body)) {
		if !slices.ContainsFunc(append(arguments, blocks...), func(p hclspec.Part) bool { return p.Name == key }) {
			return fmt.Errorf("%q: the schema has no argument and no block of this name", join(path, key))
		}
	}
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// decodePart returns the value of a part of the body at path. key is the name of the part if it has none.
func decodePart(schema *hclspec.Spec, path, key string, body map[string]any) (any, error) {
	s := schema.Node()
	name := cmp.Or(s.Name, key)
	at := join(path, name)
	switch s.Kind {
	case hclspec.KindObject:
		object := make(map[string]any, len(s.Attributes))
		for _, key := range slices.Sorted(maps.Keys(s.Attributes)) {
			var err error
			if object[key], err = decodePart(s.Attributes[key], path, key, body); err != nil {
				return nil, err
			}
		}
		return object, nil
	case hclspec.KindArray:
		list := make([]any, len(s.Values))
		for i, part := range s.Values {
			var err error
			if list[i], err = decodePart(part, path, "", body); err != nil {
				return nil, err
			}
		}
		return list, nil
	case hclspec.KindDefault:
		value, err := decodePart(s.Nested, path, "", body)
		if value != nil || err != nil {
			return value, err
		}
		return decodePart(s.Default, path, "", body)
	case hclspec.KindLiteral:
		literal, err := parseExpression(s.Expression)
		if err != nil {
			return nil, err
		}
		return literal.constant()
	case hclspec.KindAttr:
		value, given := body[name]
		if !given {
			if s.Required {
				return nil, fmt.Errorf("%q: the argument is required", at)
			}
			return nil, nil
		}
		return convertArgument(at, value, s.Expression)
	case hclspec.KindBlockMap:
		return decodeBlockMap(s, s.Labels, at, body[name])
	}
	bodies, err := blockBodies(at, body[name])
	if err != nil {
		return nil, err
	}
	switch s.Kind {
	case hclspec.KindBlock, hclspec.KindBlockAttrs:
		switch {
		case len(bodies) > 1:
			return nil, fmt.Errorf("%q: %d blocks are given, one is allowed", at, len(bodies))
		case len(bodies) == 0 && s.Required:
			return nil, fmt.Errorf("%q: the block is required", at)
		case len(bodies) == 0:
			return nil, nil
		case s.Kind == hclspec.KindBlock:
			return decodeBody(s.Nested, at, bodies[0])
		}
		for key, value := range bodies[0] {
			if bodies[0][key], err = convertArgument(join(at, key), value, s.Expression); err != nil {
				return nil, err
			}
		}
		return bodies[0], nil
	}
	if n := uint64(len(bodies)); n < s.Min || s.Max > 0 && n > s.Max {
		return nil, fmt.Errorf("%q: %d blocks are given, the limits are %d and %d (0 means none)", at, n, s.Min, s.Max)
	}
	list := make([]any, len(bodies))
	for i, inner := range bodies {
		if list[i], err = decodeBody(s.Nested, fmt.Sprintf("%s[%d]", at, i), inner); err != nil {
			return nil, err
		}
	}
	if s.Kind == hclspec.KindBlockSet {
		list = withoutDuplicates(list)
	}
	return list, nil
}

func decodeBody(schema *hclspec.Spec, path string, body map[string]any) (any, error) {
	if err := checkNames(path, schema, body); err != nil {
		return nil, err
	}
	return decodePart(schema, path, "", body)
}

// blockBodies returns the bodies of the blocks of one type, which are given as an object or as a list of objects.
func blockBodies(path string, v any) ([]map[string]any, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case map[string]any:
		return []map[string]any{v}, nil
	case []any:
		var bodies []map[string]any
		for _, elem := range v {
			body, ok := elem.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("%q: a block is %s, and must be an object", path, describe(elem))
			}
			bodies = append(bodies, body)
		}
		return bodies, nil
	}
	return nil, fmt.Errorf("%q: the block is %s, and must be an object or a list of objects", path, describe(v))
}

// decodeBlockMap decodes blocks with labels, which are given as an object with an entry for each value of the first
// label.
func decodeBlockMap(s hclspec.Node, labels []string, path string, v any) (any, error) {
	byLabel, err := blockBodies(path, v)
	if err != nil {
		return nil, err
	}
	result := map[string]any{}
	for _, group := range byLabel {
		for _, label := range slices.Sorted(maps.Keys(group)) {
			at := join(path, label)
			if _, twice := result[label]; twice {
				return nil, fmt.Errorf("%q: there are two blocks with the label", at)
			}
			if len(labels) > 1 {
				result[label], err = decodeBlockMap(s, labels[1:], at, group[label])
			} else {
				var bodies []map[string]any
				bodies, err = blockBodies(at, group[label])
				switch {
				case err != nil:
				case len(bodies) != 1:
					err = fmt.Errorf("%q: %d blocks have the label", at, len(bodies))
				default:
					result[label], err = decodeBody(s.Nested, at, bodies[0])
				}
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return result, nil
}

func convertArgument(path string, value any, typeText string) (any, error) {
	want, err := parseExpression(typeText)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	return convertValue(path, value, want)
}

// convertValue converts a value to a type as HCL does.
func convertValue(path string, value any, want expression) (any, error) {
	if value == nil {
		return nil, nil
	}
	mismatch := fmt.Errorf("%q: %s is given, and %s required", path, describe(value), describeTypeExpression(want))
	switch want.word {
	case "any":
		return value, nil
	case "string":
		switch v := value.(type) {
		case string:
			return v, nil
		case bool:
			return strconv.FormatBool(v), nil
		case *big.Float:
			return v.Text('f', -1), nil
		}
	case "number":
		switch v := value.(type) {
		case *big.Float:
			return v, nil
		case string:
			if number, err := parseNumber(v); err == nil {
				return number, nil
			}
		}
	case "bool":
		switch v := value.(type) {
		case bool:
			return v, nil
		case string:
			if i := slices.Index([]string{"false", "0", "true", "1"}, v); i >= 0 {
				return i >= 2, nil
			}
		}
	case "list", "set":
		if list, ok := value.([]any); ok {
			return convertList(path, list, want)
		}
	case "tuple":
		list, ok := value.([]any)
		if types := want.items[0].items; ok && len(list) == len(types) {
			converted := make([]any, len(list))
			for i := range list {
				var err error
				if converted[i], err = convertValue(fmt.Sprintf("%s[%d]", path, i), list[i], types[i]); err != nil {
					return nil, err
				}
			}
			return converted, nil
		}
	case "map":
		if object, ok := value.(map[string]any); ok {
			keys := slices.Sorted(maps.Keys(object))
			values := make([]any, len(keys))
			for i, key := range keys {
				values[i] = object[key]
			}
			converted, err := convertElements(values, want.items[0], func(i int) string { return join(path, keys[i]) })
			if err != nil {
				return nil, err
			}
			result := make(map[string]any, len(keys))
			for i, key := range keys {
				result[key] = converted[i]
			}
			return result, nil
		}
	case "object":
		if object, ok := value.(map[string]any); ok {
			result := map[string]any{}
			for i, name := range want.items[0].keys {
				attribute, given := object[name]
				if !given {
					return nil, fmt.Errorf("%q: the attribute %q is required", path, name)
				}
				var err error
				if result[name], err = convertValue(join(path, name), attribute, want.items[0].items[i]); err != nil {
					return nil, err
				}
			}
			return result, nil
		}
	}
	return nil, mismatch
}

func convertList(path string, list []any, want expression) (any, error) {
	converted, err := convertElements(list, want.items[0], func(i int) string { return fmt.Sprintf("%s[%d]", path, i) })
	if err == nil && want.word == "set" {
		converted = withoutDuplicates(converted)
	}
	return converted, err
}

// convertElements converts the elements of a list or map. Elements of the type any become strings if one of them is a string and
// all are strings, numbers or bools, because a collection has one type.
func convertElements(elems []any, want expression, path func(int) string) ([]any, error) {
	if want.word == "any" && slices.ContainsFunc(elems, func(e any) bool { _, ok := e.(string); return ok }) {
		want = expression{kind: wordExpression, word: "string"}
	}
	converted := make([]any, len(elems))
	for i, elem := range elems {
		var err error
		if converted[i], err = convertValue(path(i), elem, want); err != nil {
			return nil, err
		}
	}
	return converted, nil
}

// withoutDuplicates returns the elements of a set, sorted by their JSON.
func withoutDuplicates(list []any) []any {
	keys := map[string]any{}
	for _, elem := range list {
		text, _ := json.Marshal(elem) // values of blocks have a JSON form
		keys[string(text)] = elem
	}
	set := make([]any, 0, len(keys))
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		set = append(set, keys[key])
	}
	return set
}

// describe names the kind of a value without its content.
func describe(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a bool"
	case string:
		return "a string"
	case *big.Float:
		return "a number"
	case []any:
		return "a list"
	}
	return "an object"
}

func describeTypeExpression(e expression) string {
	if e.kind == wordExpression {
		return e.word
	}
	return e.word + "(…)"
}

// schemaFault returns why a schema is invalid, or nil: its structure, the types of its arguments, its constants, and
// defaults whose type is not the type of their arguments.
func schemaFault(schema *hclspec.Spec) error {
	if err := schema.Fault(); err != nil || schema == nil {
		return err
	}
	return expressionFault(schema, "config", true)
}

func expressionFault(schema *hclspec.Spec, path string, checkDefaults bool) error {
	if schema == nil {
		return nil
	}
	s := schema.Node()
	var err error
	switch s.Kind {
	case hclspec.KindAttr, hclspec.KindBlockAttrs:
		_, err = parseType(s.Expression)
	case hclspec.KindLiteral:
		_, err = parseConstant(s.Expression)
	case hclspec.KindDefault:
		if checkDefaults {
			err = defaultFault(s)
		}
	}
	if err != nil {
		return fmt.Errorf("wrong at %q: %w", path, err)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Attributes)) {
		if err := expressionFault(s.Attributes[key], path+"."+key, checkDefaults); err != nil {
			return err
		}
	}
	for _, part := range append(slices.Clip(s.Values), s.Nested, s.Default) {
		if err := expressionFault(part, path, checkDefaults); err != nil {
			return err
		}
	}
	return nil
}

func defaultFault(s hclspec.Node) error {
	argument, literal := s.Nested.Node(), s.Default.Node()
	if argument.Kind != hclspec.KindAttr || literal.Kind != hclspec.KindLiteral {
		return nil
	}
	want, err := parseType(argument.Expression)
	if err != nil {
		return err
	}
	value, err := parseConstant(literal.Expression)
	if err != nil || value == nil {
		return err
	}
	converted, err := convertValue("default", value, want)
	if primitive := slices.Contains([]string{"string", "number", "bool"}, want.word); err != nil || primitive && reflect.TypeOf(converted) != reflect.TypeOf(value) {
		return fmt.Errorf("the default is %s, and the type is %s", literal.Expression, argument.Expression)
	}
	return nil
}

func parseConstant(text string) (any, error) {
	e, err := parseExpression(text)
	if err != nil {
		return nil, err
	}
	return e.constant()
}

func parseType(text string) (expression, error) {
	e, err := parseExpression(text)
	if err == nil {
		err = e.typeFault()
	}
	if err != nil {
		return e, fmt.Errorf("the type %s is invalid: %w", text, err)
	}
	return e, nil
}

var errInvalidType = errors.New("a type is string, number, bool, any, list(T), set(T), map(T), tuple([T, …]) or object({name = T, …})")

func (e expression) typeFault() error {
	var inner []expression
	switch {
	case e.kind == wordExpression && slices.Contains([]string{"string", "number", "bool", "any"}, e.word):
	case e.kind == callExpression && len(e.items) == 1 && slices.Contains([]string{"list", "set", "map"}, e.word):
		inner = e.items
	case e.kind == callExpression && len(e.items) == 1 && e.word == "tuple" && e.items[0].kind == listExpression,
		e.kind == callExpression && len(e.items) == 1 && e.word == "object" && e.items[0].kind == objectExpression && !e.items[0].hasQuotedKey:
		inner = e.items[0].items
	default:
		return errInvalidType
	}
	for _, t := range inner {
		if err := t.typeFault(); err != nil {
			return err
		}
	}
	return nil
}
