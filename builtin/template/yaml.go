package template

import (
	"cmp"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits for YAML documents. The parser allocates 250 to 450 bytes for each value before its aliases are followed.
const (
	maxYAMLIndicators = 1 << 18 // characters that can start a value in the text of a document
	yamlValueSize     = 32      // bytes that each value counts in addition to its text, after aliases are followed
)

// parseYAML parses a YAML document. It checks the size and the depth of the document before it converts the parsed document,
// because a short document with aliases can stand for a huge one.
func parseYAML(text string) (any, error) {
	if err := checkYAMLTextLimit(text); err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		return nil, err
	}
	if document.IsZero() {
		return map[string]any{}, nil // an empty text, because the data of the template are still missing
	}
	size := 0
	if err := checkAndConvertYAMLNode(&document, 0, 0, &size); err != nil {
		return nil, err
	}
	var v any
	if err := document.Decode(&v); err != nil {
		return nil, err
	}
	return convertToStringKeysAndInt64(v), nil
}

// checkYAMLTextLimit returns an error if the parser would need too much memory for the text of a document.
func checkYAMLTextLimit(text string) error {
	line, indicators, flow := 1, 0, 0
	for i := range len(text) {
		switch c := text[i]; c {
		case '\n':
			line++
		case '[', '{':
			flow++
			indicators++
		case ',':
			if flow > 0 {
				indicators++
			}
		case '-', ':', '?':
			if flow > 0 || i+1 == len(text) || strings.IndexByte(" \t\r\n", text[i+1]) >= 0 {
				indicators++
			}
		}
		if indicators > maxYAMLIndicators {
			return fmt.Errorf("line %d: the document has more than %d values", line, maxYAMLIndicators)
		}
	}
	return nil
}

// checkAndConvertYAMLNode adds the size of a node, with aliases followed, to totalSize. It returns an error if
// the document is too large or nested too deep. The error names aliasLine, the line of the alias
// that refers to the node, or the line of the node if aliasLine is 0. checkAndConvertYAMLNode also gives
// scalars and maps the meaning of YAML 1.1, the version that consul-template uses.
func checkAndConvertYAMLNode(n *yaml.Node, aliasLine, depth int, totalSize *int) error {
	*totalSize += yamlValueSize + len(n.Value)
	switch {
	case *totalSize > maxContentSize:
		return fmt.Errorf("line %d: the document stands for more than %d bytes", cmp.Or(aliasLine, n.Line), maxContentSize)
	case depth > maxNestingDepth:
		return fmt.Errorf("line %d: the document is nested more than %d deep", cmp.Or(aliasLine, n.Line), maxNestingDepth)
	case n.Kind == yaml.AliasNode:
		return checkAndConvertYAMLNode(n.Alias, cmp.Or(aliasLine, n.Line), depth+1, totalSize)
	case n.Kind == yaml.MappingNode:
		n.Content = keepLastOfRepeatedKeys(n.Content)
	}
	for i, child := range n.Content {
		if err := checkAndConvertYAMLNode(child, aliasLine, depth+1, totalSize); err != nil {
			return err
		}
		if isKey := n.Kind == yaml.MappingNode && i%2 == 0; child.Kind == yaml.ScalarNode && child.Style == 0 && !isKey {
			convertScalarToYAML11(child)
		}
	}
	return nil
}

// convertScalarToYAML11 gives a scalar without quotes and tag the type that it has in YAML 1.1.
func convertScalarToYAML11(n *yaml.Node) {
	switch n.Tag {
	case "!!timestamp":
		n.Tag = "!!str"
	case "!!str":
		switch n.Value {
		case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
			n.Tag, n.Value = "!!bool", "true"
		case "n", "N", "no", "No", "NO", "off", "Off", "OFF":
			n.Tag, n.Value = "!!bool", "false"
		}
	}
}

// keepLastOfRepeatedKeys returns the key and value pairs of a map, without pairs whose key occurs again
// later: the last value of a key counts.
func keepLastOfRepeatedKeys(pairs []*yaml.Node) []*yaml.Node {
	last := map[string]int{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i].Kind == yaml.ScalarNode {
			last[pairs[i].Tag+pairs[i].Value] = i
		}
	}
	kept := pairs[:0]
	for i := 0; i < len(pairs); i += 2 {
		if at, ok := last[pairs[i].Tag+pairs[i].Value]; !ok || at == i {
			kept = append(kept, pairs[i], pairs[i+1])
		}
	}
	return kept
}

// convertToStringKeysAndInt64 converts the keys of maps to strings, and whole numbers to the type of parseInt.
func convertToStringKeysAndInt64(v any) any {
	switch v := v.(type) {
	case int:
		return int64(v)
	case []any:
		for i := range v {
			v[i] = convertToStringKeysAndInt64(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = convertToStringKeysAndInt64(v[k])
		}
	case map[any]any:
		m := make(map[string]any, len(v))
		for k := range v {
			m[fmt.Sprint(k)] = convertToStringKeysAndInt64(v[k])
		}
		return m
	}
	return v
}

// toYAML writes a value as block YAML.
func toYAML(v any) (string, error) {
	plain, err := toJSONTypes(v)
	if err != nil {
		return "", err
	}
	var out limitedBuffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	e.CompactSeqIndent()
	if err := e.Encode(plain); err != nil {
		return "", err
	}
	if err := e.Close(); err != nil {
		return "", err
	}
	if text := out.String(); !endsWithYAMLBlock(text) {
		return strings.TrimSuffix(text, "\n"), nil
	}
	return out.String(), nil
}

// endsWithYAMLBlock reports whether the last newline of a document can belong to a string that is written as a block. A line
// that starts such a block ends with its indicator, and its content has a larger indentation.
func endsWithYAMLBlock(text string) bool {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	indentation := len(text)
	for i := len(lines) - 1; i >= 0 && indentation > 0; i-- {
		content := strings.TrimLeft(lines[i], " ")
		if blanks := len(lines[i]) - len(content); content != "" && blanks < indentation {
			indentation = blanks
			if word := content[strings.LastIndexByte(content, ' ')+1:]; word[0] == '|' || word[0] == '>' {
				return !strings.HasSuffix(word, "-")
			}
		}
	}
	return false
}
