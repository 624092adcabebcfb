package hclspec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var _ json.Marshaler = (*Spec)(nil)

// MarshalJSON returns the message for s in the JSON form of protocol buffers, with the field names of the .proto
// file. A nil Spec is null. A text that is not valid UTF-8 is an error. For hosts only.
func (s *Spec) MarshalJSON() ([]byte, error) {
	if s == nil {
		return []byte("null"), nil
	}
	if !s.isValidUTF8() {
		return nil, errors.New("spec contains invalid UTF-8")
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(newJSONSpec(s)); err != nil {
		return nil, err
	}
	return unescapeSeparators(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// isValidUTF8 reports whether all texts of s are valid UTF-8.
func (s *Spec) isValidUTF8() bool {
	if s == nil {
		return true
	}
	texts := append([]string{s.name, s.typeOrLiteral}, s.labels...)
	parts := append([]*Spec{s.nested, s.defaultSpec}, s.values...)
	for key, part := range s.attributes {
		texts, parts = append(texts, key), append(parts, part)
	}
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return false
		}
	}
	for _, part := range parts {
		if !part.isValidUTF8() {
			return false
		}
	}
	return true
}

// unescapeSeparators replaces the escapes of U+2028 and U+2029 by the characters: encoding/json always escapes them, and the
// JSON form of protocol buffers does not.
func unescapeSeparators(text []byte) []byte {
	if !bytes.Contains(text, []byte(`\u202`)) {
		return text
	}
	var out []byte
	for len(text) > 0 {
		switch {
		case bytes.HasPrefix(text, []byte(`\u2028`)):
			out, text = append(out, "\u2028"...), text[6:]
		case bytes.HasPrefix(text, []byte(`\u2029`)):
			out, text = append(out, "\u2029"...), text[6:]
		case text[0] == '\\':
			out, text = append(out, text[:2]...), text[2:] // the character after a backslash starts no escape
		default:
			out, text = append(out, text[0]), text[1:]
		}
	}
	return out
}

// jsonSpec is a Spec in the JSON form of its message. At most one field is set.
type jsonSpec struct {
	Object     *jsonParts `json:"object,omitempty"`
	Array      *jsonParts `json:"array,omitempty"`
	Attr       *jsonParts `json:"Attr,omitempty"`
	Block      *jsonParts `json:"block_value,omitempty"`
	BlockAttrs *jsonParts `json:"block_attrs,omitempty"`
	BlockList  *jsonParts `json:"block_list,omitempty"`
	BlockSet   *jsonParts `json:"block_set,omitempty"`
	BlockMap   *jsonParts `json:"block_map,omitempty"`
	Default    *jsonParts `json:"default,omitempty"`
	Literal    *jsonParts `json:"literal,omitempty"`
}

// jsonParts has the fields of all kinds, in an order that is right for each kind: a Spec sets only the fields of its kind.
type jsonParts struct {
	Attributes map[string]*jsonSpec `json:"attributes,omitempty"`
	Values     []*jsonSpec          `json:"values,omitempty"`
	Name       string               `json:"name,omitempty"`
	Type       string               `json:"type,omitempty"`
	Required   bool                 `json:"required,omitempty"`
	MinItems   uint64               `json:"min_items,omitempty,string"`
	MaxItems   uint64               `json:"max_items,omitempty,string"`
	Labels     []string             `json:"labels,omitempty"`
	Nested     *jsonSpec            `json:"nested,omitempty"`
	Primary    *jsonSpec            `json:"primary,omitempty"`
	Default    *jsonSpec            `json:"default,omitempty"`
	Value      string               `json:"value,omitempty"`
}

// newJSONSpec returns the JSON form of a Spec, which is nil for a nil Spec.
func newJSONSpec(s *Spec) *jsonSpec {
	if s == nil {
		return nil
	}
	switch p := (&jsonParts{Name: s.name, Required: s.required, MinItems: s.minBlocks, MaxItems: s.maxBlocks, Labels: s.labels}); s.kind {
	case KindObject:
		p.Attributes = make(map[string]*jsonSpec, len(s.attributes))
		for key, part := range s.attributes {
			p.Attributes[key] = newJSONElement(part)
		}
		return &jsonSpec{Object: p}
	case KindArray:
		for _, part := range s.values {
			p.Values = append(p.Values, newJSONElement(part))
		}
		return &jsonSpec{Array: p}
	case KindAttr:
		p.Type = s.typeOrLiteral
		return &jsonSpec{Attr: p}
	case KindBlock:
		p.Nested = newJSONSpec(s.nested)
		return &jsonSpec{Block: p}
	case KindBlockAttrs:
		p.Type = s.typeOrLiteral
		return &jsonSpec{BlockAttrs: p}
	case KindBlockList:
		p.Nested = newJSONSpec(s.nested)
		return &jsonSpec{BlockList: p}
	case KindBlockSet:
		p.Nested = newJSONSpec(s.nested)
		return &jsonSpec{BlockSet: p}
	case KindBlockMap:
		p.Nested = newJSONSpec(s.nested)
		return &jsonSpec{BlockMap: p}
	case KindDefault:
		p.Primary, p.Default = newJSONSpec(s.nested), newJSONSpec(s.defaultSpec)
		return &jsonSpec{Default: p}
	case KindLiteral:
		p.Value = s.typeOrLiteral
		return &jsonSpec{Literal: p}
	default:
		return &jsonSpec{}
	}
}

// newJSONElement returns the JSON form of an element of a map or a list. For a nil Spec it is an empty message, because a
// list or a map of protocol buffers cannot contain null.
func newJSONElement(s *Spec) *jsonSpec {
	if s == nil {
		return &jsonSpec{}
	}
	return newJSONSpec(s)
}

// FromJSON returns the Spec whose MarshalJSON is text. Like specwire.FromProto, it leaves most errors to block.Decode. The Spec of
// null is nil.
//
// FromJSON accepts each JSON form of the message: names of fields in "lowerCamelCase" too, limits as numbers, and fields that are
// null. An unknown or repeated field is an error. For hosts only.
func FromJSON(text []byte) (*Spec, error) {
	if string(text) == "null" {
		return nil, nil
	}
	switch {
	case !json.Valid(text):
		return nil, errors.New("spec is not valid JSON")
	case !utf8.Valid(text):
		return nil, errors.New("spec contains invalid UTF-8")
	}
	r := jsonReader{json.NewDecoder(bytes.NewReader(text))}
	r.decoder.UseNumber()
	return r.readSpec(r.nextToken(), MaxDepth)
}

// jsonReader reads a valid JSON text. Each method that reads a value has the first token of the value as a parameter.
type jsonReader struct{ decoder *json.Decoder }

// nextToken reads the next token. The token of null is nil.
func (r jsonReader) nextToken() json.Token {
	token, err := r.decoder.Token()
	if err != nil {
		panic(fmt.Sprintf("valid JSON has a syntax error: %v", err)) // FromJSON has checked the text
	}
	return token
}

// fieldNames maps the names in "lowerCamelCase" to the names of the .proto file, where they differ.
var fieldNames = map[string]string{
	"blockValue": "block_value", "blockAttrs": "block_attrs", "blockList": "block_list", "blockSet": "block_set", "blockMap": "block_map",
	"minItems": "min_items", "maxItems": "max_items",
}

// readMessage reads the fields of a message: read reads the value of a field that is not null.
func (r jsonReader) readMessage(first json.Token, read func(name string, first json.Token) error) error {
	seen := map[string]bool{}
	return r.readObject(first, func(name string, first json.Token) error {
		if protoName, ok := fieldNames[name]; ok {
			name = protoName
		}
		if seen[name] {
			return errors.New("the field occurs twice")
		}
		seen[name] = true
		return read(name, first)
	})
}

// readObject calls read for each member of an object.
func (r jsonReader) readObject(first json.Token, read func(key string, first json.Token) error) error {
	if first != json.Delim('{') {
		return errors.New("the value is no object")
	}
	for r.decoder.More() {
		key := r.nextToken().(string)
		if err := read(key, r.nextToken()); errors.Is(err, errTooDeep) {
			return err // the key is not added: the error would contain the keys of hundreds of levels
		} else if err != nil {
			return fmt.Errorf("%q: %w", key, err)
		}
	}
	r.nextToken()
	return nil
}

// readList calls read for each element of a list.
func (r jsonReader) readList(first json.Token, read func(first json.Token) error) error {
	if first != json.Delim('[') {
		return errors.New("the value is no list")
	}
	for r.decoder.More() {
		if err := read(r.nextToken()); err != nil {
			return err
		}
	}
	r.nextToken()
	return nil
}

var (
	errUnknownField = errors.New("the field is unknown")
	errTooDeep      = fmt.Errorf("spec is nested deeper than %d levels", MaxDepth)
)

var kindByField = map[string]Kind{
	"object": KindObject, "array": KindArray, "Attr": KindAttr, "block_value": KindBlock, "block_attrs": KindBlockAttrs, "block_list": KindBlockList,
	"block_set": KindBlockSet, "block_map": KindBlockMap, "default": KindDefault, "literal": KindLiteral,
}

// readSpec reads a Spec with at most depth levels.
func (r jsonReader) readSpec(first json.Token, depth int) (*Spec, error) {
	if depth == 0 {
		return nil, errTooDeep
	}
	s := &Spec{}
	err := r.readMessage(first, func(name string, first json.Token) error {
		kind, ok := kindByField[name]
		switch {
		case !ok:
			return errUnknownField
		case first == nil:
			return nil
		case s.kind != KindNone:
			return errors.New("the spec has two kinds")
		}
		s.kind = kind
		switch kind {
		case KindObject:
			s.attributes = map[string]*Spec{}
		case KindArray:
			s.values = []*Spec{}
		}
		return r.readMessage(first, func(name string, first json.Token) error { return r.readField(s, name, first, depth-1) })
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// fieldsByKind are the fields of the message of each kind.
var fieldsByKind = [...]string{
	KindObject:     "attributes",
	KindArray:      "values",
	KindAttr:       "name type required",
	KindBlock:      "name required nested",
	KindBlockAttrs: "name type required",
	KindBlockList:  "name min_items max_items nested",
	KindBlockSet:   "name min_items max_items nested",
	KindBlockMap:   "name labels nested",
	KindDefault:    "primary default",
	KindLiteral:    "value",
}

// readField reads a field of the message of s, whose kind is set. A Spec in it has at most depth levels.
func (r jsonReader) readField(s *Spec, name string, first json.Token, depth int) (err error) {
	if !slices.Contains(strings.Fields(fieldsByKind[s.kind]), name) {
		return errUnknownField
	}
	if first == nil {
		return nil // a field that is null is absent
	}
	switch name {
	case "attributes":
		err = r.readObject(first, func(key string, first json.Token) error {
			if _, ok := s.attributes[key]; ok {
				return errors.New("the key occurs twice")
			}
			part, err := r.readSpec(first, depth)
			s.attributes[key] = part
			return err
		})
	case "values":
		err = r.readList(first, func(first json.Token) error {
			value, err := r.readSpec(first, depth)
			s.values = append(s.values, value)
			return err
		})
	case "labels":
		err = r.readList(first, func(first json.Token) error {
			label, err := stringFromToken(first)
			s.labels = append(s.labels, label)
			return err
		})
	case "name":
		s.name, err = stringFromToken(first)
	case "type", "value":
		s.typeOrLiteral, err = stringFromToken(first)
	case "required":
		var ok bool
		if s.required, ok = first.(bool); !ok {
			err = errors.New("the value is neither true nor false")
		}
	case "min_items":
		s.minBlocks, err = uint64FromToken(first)
	case "max_items":
		s.maxBlocks, err = uint64FromToken(first)
	case "nested", "primary":
		s.nested, err = r.readSpec(first, depth)
	case "default":
		s.defaultSpec, err = r.readSpec(first, depth)
	}
	return err
}

func stringFromToken(token json.Token) (string, error) {
	text, ok := token.(string)
	if !ok {
		return "", errors.New("the value is no string")
	}
	return text, nil
}

// uint64FromToken returns the value of a number, or of a string with a number.
func uint64FromToken(token json.Token) (uint64, error) {
	var text string
	switch token := token.(type) {
	case json.Number:
		text = token.String()
	case string:
		// A string has the syntax of a number in JSON, without white space around it.
		if json.Valid([]byte(token)) && strings.Trim(token, "+-.0123456789eE") == "" {
			text = token
		}
	}
	if digits, ok := integerDigits(text); ok {
		if n, err := strconv.ParseUint(digits, 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, errors.New("the value is no integer from 0 to 18446744073709551615")
}

// integerDigits returns the decimal digits of a number of JSON, such as 25 for 2.50E+1. It reports false if the number is
// negative, has a fraction, or has more digits than a uint64.
func integerDigits(number string) (string, bool) {
	unsigned := strings.TrimPrefix(number, "-")
	mantissa, exponentText := unsigned, "0"
	if i := strings.IndexAny(unsigned, "eE"); i >= 0 {
		mantissa, exponentText = unsigned[:i], unsigned[i+1:]
	}
	integer, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimRight(integer+fraction, "0")
	if digits == "" {
		return "0", number != ""
	}
	exponent, err := strconv.Atoi(exponentText)
	zeros := len(integer) + exponent - len(digits)
	if err != nil || unsigned != number || zeros < 0 || zeros >= 20 {
		return "", false
	}
	return digits + strings.Repeat("0", zeros), true
}
