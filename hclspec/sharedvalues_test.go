package hclspec

import (
	"reflect"
	"testing"
)

// Values of a map share nothing with each other.
func TestValuesOfMapAreSeparate(t *testing.T) {
	type model struct {
		Paths []string          `codec:"paths"`
		Attrs map[string]string `codec:"attrs"`
		P     *int              `codec:"p"`
	}
	type config struct {
		Models map[string]model            `codec:"models"`
		Nested map[string]map[string]model `codec:"nested"`
	}
	number := func(n int) *int { return &n }
	models := map[string]model{
		"A": {[]string{"a1", "a2"}, map[string]string{"a": "1"}, number(1)},
		"B": {[]string{"b1"}, map[string]string{"b": "2"}, number(2)},
		"C": {nil, nil, nil},
		"D": {[]string{"d1", "d2"}, map[string]string{"d": "4"}, number(4)},
	}
	want := config{Models: models, Nested: map[string]map[string]model{"x": models, "y": {"A": models["B"]}}}
	encoded, err := MarshalState(want)
	if err != nil {
		t.Fatal(err)
	}
	jsonText := []byte(`{"models":{"A":{"paths":["a1","a2"],"attrs":{"a":"1"},"p":1},"B":{"paths":["b1"],"attrs":{"b":"2"},"p":2},"C":{"paths":null,"attrs":null,"p":null},"D":{"paths":["d1","d2"],"attrs":{"d":"4"},"p":4}},
		"nested":{"x":{"A":{"paths":["a1","a2"],"attrs":{"a":"1"},"p":1},"B":{"paths":["b1"],"attrs":{"b":"2"},"p":2},"C":{"paths":null,"attrs":null,"p":null},"D":{"paths":["d1","d2"],"attrs":{"d":"4"},"p":4}},"y":{"A":{"paths":["b1"],"attrs":{"b":"2"},"p":2}}}}`)
	for name, decode := range map[string]func(dst any) error{
		"UnmarshalState": func(dst any) error { return UnmarshalState(encoded, dst) },
		"Unmarshal":      func(dst any) error { return Unmarshal(encoded, dst) },
		"UnmarshalExact": func(dst any) error { return UnmarshalExact(encoded, dst) },
		"UnmarshalJSON":  func(dst any) error { return UnmarshalJSON(jsonText, dst) },
	} {
		for range 5 { // the order of the keys of a map is random
			var got config
			if err := decode(&got); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, %v", name, got, err)
				break
			}
		}
	}
}
