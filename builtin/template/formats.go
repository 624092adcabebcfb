package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/BurntSushi/toml"
)

func toTOML(v any) (string, error) {
	plain, err := toJSONTypes(v)
	if err != nil {
		return "", err
	}
	if _, ok := plain.(map[string]any); !ok {
		return "", errors.New("only a map can be TOML")
	}
	var out limitedBuffer // limited, because the header of each table repeats the keys of all tables around it
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
