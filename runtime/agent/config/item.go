package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// configItem is a setting or a block, from HCL or JSON.
type configItem struct {
	name              string
	sourceRange       hcl.Range
	scalarOrListValue any           // type is string, float64, bool or []any, or nil
	children          []*configItem // contents of a block or an object, otherwise nil
	objectJSONValue   any           // the value as encoding/json decodes it, if it is an object or a list of objects
}

// rangeOfSettingOrBlock returns the position of the named setting in the block.
func (i configItem) rangeOfSettingOrBlock(name string) hcl.Range {
	for _, child := range i.children {
		if child.name == name && child.sourceRange.Filename != "" {
			return child.sourceRange
		}
	}
	return i.sourceRange
}

func (i configItem) isBlock() bool { return i.children != nil }

// parseHCLAndAddPlugins parses a file in HCL, not JSON. Its plugin blocks are added to the reader's plugins.
func (r *configFileReader) parseHCLAndAddPlugins(filename string, src []byte) []*configItem {
	d, diags := parseDocument(filename, src)
	r.diags = append(r.diags, diags...)
	if d == nil {
		return nil
	}
	items := r.readItems(d, d.items, topLevelBody)
	r.config.Plugins = append(r.config.Plugins, r.plugins...)
	return items
}

// bodyKind says where a list of settings and blocks is written.
type bodyKind int

const (
	topLevelBody bodyKind = iota
	blockBody             // NAME { … }: a repeated setting is an error
	objectBody            // NAME = { … }: a later element replaces an earlier element with the same name
)

func (r *configFileReader) readItems(d *hclDocument, body *ast.ObjectList, kind bodyKind) []*configItem {
	items := []*configItem{}
	settings := make(map[string]*configItem)
	for _, node := range body.Items {
		names, diags := d.decodeNameAndLabels(node)
		if r.diags = append(r.diags, diags...); diags.HasErrors() {
			continue
		}
		if kind == topLevelBody && names[0] == "plugin" && !node.Assign.IsValid() {
			block, diags := parsePluginBlock(d, node, names[1:])
			r.diags = append(r.diags, diags...)
			if !diags.HasErrors() {
				r.diags = append(r.diags, r.plugins.addOrReplace(block)...)
			}
			continue
		}
		i := &configItem{name: names[0], sourceRange: d.keysRange(node.Keys)}
		if !r.setItemValue(d, i, node.Val, node.Assign.IsValid()) {
			continue
		}
		if !node.Assign.IsValid() {
			for _, label := range slices.Backward(names[1:]) {
				i = &configItem{name: i.name, sourceRange: i.sourceRange, children: []*configItem{{name: label, sourceRange: i.sourceRange, children: i.children}}}
			}
			items = append(items, i)
			continue
		}
		earlier := settings[i.name]
		switch {
		case earlier == nil:
			settings[i.name] = i
			items = append(items, i)
		case kind == objectBody:
			*earlier = *i
		default:
			r.diags = append(r.diags, repeatedSettingError(i.name, i.sourceRange, earlier.sourceRange)...)
		}
	}
	return items
}

func repeatedSettingError(name string, rng, earlier hcl.Range) hcl.Diagnostics {
	return syntaxError(rng, "%s is already set at %s: remove one of the two settings", name, earlier)
}

// setItemValue stores a parsed value in i; an object becomes a block. isAssigned means that the value follows "=". setItemValue adds
// a diagnostic and returns false after an error.
func (r *configFileReader) setItemValue(d *hclDocument, i *configItem, value ast.Node, isAssigned bool) (ok bool) {
	switch v := value.(type) {
	case *ast.ObjectType:
		kind := blockBody
		if isAssigned {
			kind = objectBody
		}
		i.children = r.readItems(d, v.List, kind)
		return true
	case *ast.ListType:
		list := make([]any, 0, len(v.List))
		for _, node := range v.List {
			element := configItem{name: i.name}
			if !r.setItemValue(d, &element, node, true) {
				return false
			}
			list = append(list, element.toJSONValue())
		}
		i.scalarOrListValue = list
		return true
	}
	expr, diags := d.parseLiteral(value.(*ast.LiteralType).Token)
	if diags.HasErrors() {
		r.diags = append(r.diags, diags...)
		return false
	}
	v, diags := expr.Value(nil)
	if diags.HasErrors() {
		r.addDiagnostic(hcl.DiagError, expr.Range(), "%s: the value must be written out: %s For a text with ${ in it write $${.", i.name, diags[0].Detail)
		return false
	}
	switch v.Type() {
	case cty.Bool:
		i.scalarOrListValue = v.True()
	case cty.Number:
		i.scalarOrListValue, _ = v.AsBigFloat().Float64()
	case cty.String:
		i.scalarOrListValue = v.AsString()
	}
	return true
}

// parseJSONAndAddPlugins parses a configuration file in JSON, where a block is an object or a list of objects. The
// position of a setting is the first place in the file where its name is written.
func (r *configFileReader) parseJSONAndAddPlugins(filename string, src []byte) []*configItem {
	d := json.NewDecoder(bytes.NewReader(src))
	var top map[string]any
	err := d.Decode(&top)
	if err == nil && d.More() {
		err = errors.New("there is something after the object")
	}
	if err != nil {
		pos := hcl.InitialPos
		var syntaxErr *json.SyntaxError
		if errors.As(err, &syntaxErr) {
			pos = positionOfOffset(src, int(syntaxErr.Offset))
		}
		r.addDiagnostic(hcl.DiagError, hcl.Range{Filename: filename, Start: pos, End: pos}, "not a JSON object: %v", err)
		return nil
	}
	rangeOfName := func(name string) hcl.Range {
		at := max(bytes.Index(src, []byte(strconv.Quote(name))), 0)
		return hcl.Range{Filename: filename, Start: positionOfOffset(src, at), End: positionOfOffset(src, at)}
	}
	delete(top, schemaName) // for editors
	if plugins, ok := top["plugin"]; ok {
		delete(top, "plugin")
		r.addJSONPluginBlocks(plugins, rangeOfName)
	}
	return itemsOfJSONObject(top, rangeOfName)
}

// addJSONPluginBlocks reads plugin blocks in JSON: {"NAME": {"args": […], "config": {…}}}, or a list of such
// objects.
func (r *configFileReader) addJSONPluginBlocks(v any, rangeOfName func(string) hcl.Range) {
	for _, plugins := range jsonObjectsOrNil(v) {
		for _, name := range slices.Sorted(maps.Keys(plugins)) {
			block := catalog.PluginBlock{Name: name, Range: rangeOfName(name)}
			for _, content := range jsonObjectsOrNil(plugins[name]) {
				for _, setting := range slices.Sorted(maps.Keys(content)) {
					r.setInJSONPluginBlock(&block, setting, content[setting], rangeOfName(setting))
				}
			}
			r.config.Plugins = append(r.config.Plugins, block)
		}
	}
}

// setInJSONPluginBlock stores a setting of a plugin block, whose value encoding/json has decoded.
func (r *configFileReader) setInJSONPluginBlock(block *catalog.PluginBlock, name string, value any, at hcl.Range) {
	var err error
	switch name {
	case "args":
		block.Args, err = jsonListAsStrings(value)
	case "config":
		blocks := jsonObjectsOrNil(value)
		if len(blocks) != 1 {
			err = errors.New("is one object")
			break
		}
		block.Config = blocks[0]
	case "env_allowlist":
		block.EnvAllowlist, err = jsonListAsStrings(value)
	case "sha256":
		if block.SHA256, _ = value.(string); !isSHA256(block.SHA256) {
			r.addDiagnostic(hcl.DiagError, at, "plugin %q: %s", block.Name, notSHA256)
		}
	default:
		r.addDiagnostic(hcl.DiagWarning, at, "plugin %q: %s", block.Name, unknownPluginSetting(name))
	}
	if err != nil {
		r.addDiagnostic(hcl.DiagError, at, "plugin %q: %s %v", block.Name, name, err)
	}
}

func itemsOfJSONObject(m map[string]any, rangeOfName func(string) hcl.Range) []*configItem {
	items := []*configItem{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		i := configItem{name: name, sourceRange: rangeOfName(name), scalarOrListValue: m[name]}
		if blocks := jsonObjectsOrNil(m[name]); blocks != nil {
			i.scalarOrListValue, i.children, i.objectJSONValue = nil, []*configItem{}, m[name]
			for _, b := range blocks {
				i.children = append(i.children, itemsOfJSONObject(b, rangeOfName)...)
			}
		}
		items = append(items, &i)
	}
	slices.SortStableFunc(items, func(a, b *configItem) int { return a.sourceRange.Start.Byte - b.sourceRange.Start.Byte })
	return items
}

// jsonObjectsOrNil returns the elements of a list of objects, or an object as a list with one element. It returns nil for another
// value.
func jsonObjectsOrNil(v any) []map[string]any {
	switch v := v.(type) {
	case map[string]any:
		return []map[string]any{v}
	case []any:
		var all []map[string]any
		for _, element := range v {
			m, ok := element.(map[string]any)
			if !ok {
				return nil
			}
			all = append(all, m)
		}
		return all
	}
	return nil
}

// jsonListAsStrings returns the elements of a list of strings, numbers and booleans. An empty list is not nil.
func jsonListAsStrings(v any) ([]string, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, errors.New(`must be a list, such as ["a", "b"]`)
	}
	texts := make([]string, len(list))
	for n, element := range list {
		text, err := configItem{scalarOrListValue: element}.parseScalarAsString()
		if err != nil {
			return nil, fmt.Errorf("%d: %w", n, err)
		}
		texts[n] = text
	}
	return texts, nil
}

func positionOfOffset(src []byte, byteOffset int) hcl.Pos {
	text := src[:min(byteOffset, len(src))]
	return hcl.Pos{
		Byte:   len(text),
		Line:   1 + bytes.Count(text, []byte("\n")),
		Column: len(text) - bytes.LastIndexByte(text, '\n'),
	}
}

func (i configItem) parseScalarAsString() (string, error) {
	switch v := i.scalarOrListValue.(type) {
	case string:
		return v, nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	case bool:
		return strconv.FormatBool(v), nil
	}
	return "", errors.New("must be a string")
}

func (i configItem) parseBoolean() (bool, error) {
	switch v := i.scalarOrListValue.(type) {
	case bool:
		return v, nil
	case string:
		if b, err := strconv.ParseBool(v); err == nil {
			return b, nil
		}
	case float64:
		return v != 0, nil
	}
	return false, errors.New("must be true or false")
}

func (i configItem) parseNumber() (float64, error) {
	switch v := i.scalarOrListValue.(type) {
	case float64:
		return v, nil
	case string:
		if f, err := strconv.ParseFloat(v, 64); err == nil {
			return f, nil
		}
	}
	return 0, errors.New("must be a number")
}

// parseDuration parses a duration, given as a text like "90s" or as a number of nanoseconds.
func (i configItem) parseDuration() (time.Duration, error) {
	switch v := i.scalarOrListValue.(type) {
	case float64:
		return time.Duration(v), nil
	case string:
		if d, err := time.ParseDuration(v); err == nil && d >= 0 {
			return d, nil
		}
	}
	return 0, errors.New(`must be a duration, such as "90s"`)
}

// parseStringMap returns the settings of a block as strings, by name; the user can choose the names.
func (i configItem) parseStringMap() (map[string]string, error) {
	if !i.isBlock() {
		return nil, errors.New("must be a block or an object")
	}
	all := make(map[string]string)
	for _, child := range i.children {
		text, err := child.parseScalarAsString()
		if err != nil {
			return nil, fmt.Errorf("%s %w", child.name, err)
		}
		all[child.name] = text
	}
	return all, nil
}

// splitCommaList splits a comma-separated list into its elements.
func splitCommaList(text string) []string {
	var all []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			all = append(all, word)
		}
	}
	return all
}
