package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/zclconf/go-cty-yaml"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// parseYAML parses a YAML document. With aliases a short document can expand to
// a huge one, so parseYAML checks the size before it converts the parsed
// document.
func parseYAML(s string) (any, error) {
	if strings.TrimSpace(s) == "" {
		return map[string]any{}, nil
	}
	if yamlDepth(s) > maxNestingDepth {
		return nil, fmt.Errorf("the document may be nested more than %d deep", maxNestingDepth)
	}
	t, err := yaml.ImpliedType([]byte(s))
	if err != nil {
		return nil, err
	}
	v, err := yaml.Unmarshal([]byte(s), t)
	if err != nil {
		return nil, err
	}
	left := maxContentSize
	if err := checkYAMLSize(v, &left); err != nil {
		return nil, err
	}
	text, err := ctyjson.Marshal(v, t)
	if err != nil {
		return nil, err
	}
	return decodeJSON(text)
}

// yamlDepth returns an upper limit for the nesting depth of a document,
// computed from its brackets and the indentation of its lines. The limit is
// needed because the parser is recursive.
func yamlDepth(s string) (deepest int) {
	brackets := 0
	for line := range strings.Lines(s) {
		deepest = max(deepest, len(line)-len(strings.TrimLeft(line, " \t-?:")))
		for _, c := range []byte(line) {
			switch c {
			case '[', '{':
				brackets++
			case ']', '}':
				brackets = max(0, brackets-1)
			}
			deepest = max(deepest, brackets)
		}
	}
	return deepest
}

// checkYAMLSize subtracts the size of a parsed YAML value from left, and
// returns an error if left becomes negative. It counts more bytes than valueSize,
// because values of the YAML parser need more memory.
func checkYAMLSize(v cty.Value, left *int) error {
	*left -= 4 * valueOverhead
	if v.Type() == cty.String && v.IsKnown() && !v.IsNull() {
		*left -= len(v.AsString())
	}
	if *left < 0 {
		return fmt.Errorf("the document stands for more than %d bytes", maxContentSize)
	}
	if v.IsKnown() && !v.IsNull() && v.CanIterateElements() {
		for it := v.ElementIterator(); it.Next(); {
			_, element := it.Element()
			if err := checkYAMLSize(element, left); err != nil {
				return err
			}
		}
	}
	return nil
}

func toTOML(v any) (string, error) {
	plain, err := toJSONTypes(v)
	if err != nil {
		return "", err
	}
	if _, ok := plain.(map[string]any); !ok {
		return "", errors.New("only a map can be TOML")
	}
	var out limitedBuffer // the header of each table has the keys of all tables around it
	if err := toml.NewEncoder(&out).Encode(plain); err != nil {
		return "", err
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// toJSONTypes converts a value to the types of a decoded JSON document, with whole
// numbers as integers.
func toJSONTypes(v any) (plain any, err error) {
	if _, err := valueSize(v); err != nil {
		return nil, err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return decodeJSON(text)
}

func decodeJSON(text []byte) (plain any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err = decoder.Decode(&plain)
	return convertJSONNumbers(plain), err
}

// convertJSONNumbers converts the whole numbers of a decoded JSON document to
// integers.
func convertJSONNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	case map[string]any:
		for k, e := range v {
			v[k] = convertJSONNumbers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = convertJSONNumbers(e)
		}
	}
	return v
}
