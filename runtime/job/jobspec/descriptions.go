package jobspec

import (
	_ "embed"
	"reflect"
	"strings"
)

//go:embed descriptions.txt
var descriptionLines string

// attributeDescription describes an attribute or a block of a body.
type attributeDescription struct {
	text       string
	difference string // difference from Nomad; empty if there is none
}

// readDescriptions returns the descriptions of descriptions.txt by the name of the struct type and the name in the file, such as
// "Task.driver".
func readDescriptions() map[string]attributeDescription {
	descriptions := make(map[string]attributeDescription)
	for line := range strings.Lines(descriptionLines) {
		name, text, found := strings.Cut(strings.TrimSpace(line), ": ")
		if !found || strings.HasPrefix(line, "#") {
			continue
		}
		text, difference, _ := strings.Cut(text, " | ")
		descriptions[name] = attributeDescription{text, difference}
	}
	return descriptions
}

// descriptionKey returns the key of an attribute or a block in the result of readDescriptions.
func descriptionKey(t reflect.Type, hclName string) string { return t.Name() + "." + hclName }
