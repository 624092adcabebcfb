package schematest

import (
	"bytes"
	"testing"

	validator "github.com/santhosh-tekuri/jsonschema/v6"
)

// Compile returns the function that validates the text of a file by a JSON Schema. The function returns an error for a text
// that is no JSON, too. Compile ends the test if the schema itself is invalid.
func Compile(t testing.TB, schemaText []byte) func(file []byte) error {
	t.Helper()
	document, err := validator.UnmarshalJSON(bytes.NewReader(schemaText))
	if err != nil {
		t.Fatal(err)
	}
	compiler := validator.NewCompiler()
	if err := compiler.AddResource("schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return func(file []byte) error {
		value, err := validator.UnmarshalJSON(bytes.NewReader(file))
		if err != nil {
			return err
		}
		return schema.Validate(value)
	}
}
