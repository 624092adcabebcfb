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

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// configItem is a setting or a block, from HCL or JSON.
type configItem struct {
	name      string
	rng       hcl.Range
	value     any           // type is string, float64, bool or []any, or nil
	children  []*configItem // contents of a block or an object, otherwise nil
	jsonValue any           // the value as encoding/json decodes it, if it is an object or a list of objects
}

// settingPosition returns the position of the named setting in the block.
func (i configItem) settingPosition(name string) hcl.Range {
	for _, child := range i.children {
		if child.name == name && child.rng.Filename != "" {
			return child.rng
		}
	}
	return i.rng
}

func (i configItem) isBlock() bool { return i.children != nil }

// parseHCL parses a file in HCL, not JSON. Its plugin blocks are added to the reader's plugins.
func (r *configReader) parseHCL(filename string, src []byte) []*configItem {
	d, diags := parseDocument(filename, src)
	r.diags = append(r.diags, diags...)
	if d == nil {
		return nil
	}
	items := r.itemsOfBody(d, d.body, true)
	r.config.Plugins = append(r.config.Plugins, r.plugins...)
	return items
}

func (r *configReader) itemsOfBody(d *configDocument, body *hclsyntax.Body, top bool) []*configItem {
	items := []*configItem{}
	for _, attr := range body.Attributes {
		value, diags := attr.Expr.Value(nil)
		if diags.HasErrors() {
			wayOut := ""
			switch attr.Expr.(type) {
			case *hclsyntax.TemplateExpr, *hclsyntax.TemplateWrapExpr:
				wayOut = " For a text with ${ in it write $${."
			}
			r.addDiagnostic(hcl.DiagError, d.fileRange(attr.Expr.Range()), "%s: the value must be written out: %s%s", d.settingName(attr), diags[0].Detail, wayOut)
			continue
		}
		i := itemFromValue(value)
		i.name, i.rng = d.settingName(attr), d.fileRange(attr.NameRange)
		items = append(items, &i)
	}
	for _, b := range body.Blocks {
		if top && b.Type == "plugin" {
			block, diags := d.parsePluginBlock(b)
			r.diags = append(r.diags, diags...)
			if !diags.HasErrors() {
				r.diags = append(r.diags, r.plugins.add(block)...)
			}
			continue
		}
		i := configItem{name: b.Type, rng: d.fileRange(b.DefRange()), children: r.itemsOfBody(d, b.Body, false)}
		for _, label := range slices.Backward(b.Labels) {
			i = configItem{name: b.Type, rng: i.rng, children: []*configItem{{name: label, rng: i.rng, children: i.children}}}
		}
		items = append(items, &i)
	}
	slices.SortStableFunc(items, func(a, b *configItem) int { return a.rng.Start.Byte - b.rng.Start.Byte })
	return items
}

// itemFromValue converts an HCL value to an item; an object becomes a block.
func itemFromValue(v cty.Value) configItem {
	switch {
	case v.IsNull() || !v.IsKnown():
		return configItem{}
	case v.Type() == cty.String:
		return configItem{value: v.AsString()}
	case v.Type() == cty.Bool:
		return configItem{value: v.True()}
	case v.Type() == cty.Number:
		f, _ := v.AsBigFloat().Float64()
		return configItem{value: f}
	case v.Type().IsObjectType() || v.Type().IsMapType():
		i := configItem{children: []*configItem{}}
		for key, element := range v.Elements() {
			child := itemFromValue(element)
			child.name = key.AsString()
			i.children = append(i.children, &child)
		}
		return i
	}
	list := []any{}
	for _, element := range v.Elements() {
		list = append(list, itemFromValue(element).value)
	}
	return configItem{value: list}
}

// parseJSON parses a file in JSON, where a block is an object or a list of objects. The position of a
// setting is the line of its name.
func (r *configReader) parseJSON(filename string, src []byte) []*configItem {
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
			pos = offsetPosition(src, int(syntaxErr.Offset))
		}
		r.addDiagnostic(hcl.DiagError, hcl.Range{Filename: filename, Start: pos, End: pos}, "not a JSON object: %v", err)
		return nil
	}
	place := func(name string) hcl.Range {
		at := max(bytes.Index(src, []byte(strconv.Quote(name))), 0)
		return hcl.Range{Filename: filename, Start: offsetPosition(src, at), End: offsetPosition(src, at)}
	}
	if plugins, ok := top["plugin"]; ok {
		delete(top, "plugin")
		r.parseJSONPlugins(plugins, place)
	}
	return itemsOfObject(top, place)
}

// parseJSONPlugins reads plugin blocks in JSON: {"NAME": {"args": […], "config": {…}}}, or a list of such
// objects.
func (r *configReader) parseJSONPlugins(v any, place func(string) hcl.Range) {
	for _, plugins := range toObjectList(v) {
		for _, name := range slices.Sorted(maps.Keys(plugins)) {
			block := catalog.PluginBlock{Name: name, Range: place(name)}
			for _, content := range toObjectList(plugins[name]) {
				for _, arg := range toList(content["args"]) {
					block.Args = append(block.Args, fmt.Sprint(arg))
				}
				for _, config := range toObjectList(content["config"]) {
					block.Config = config
				}
			}
			r.config.Plugins = append(r.config.Plugins, block)
		}
	}
}

func itemsOfObject(m map[string]any, place func(string) hcl.Range) []*configItem {
	items := []*configItem{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		i := configItem{name: name, rng: place(name), value: m[name]}
		if blocks := toObjectList(m[name]); blocks != nil {
			i.value, i.children, i.jsonValue = nil, []*configItem{}, m[name]
			for _, b := range blocks {
				i.children = append(i.children, itemsOfObject(b, place)...)
			}
		}
		items = append(items, &i)
	}
	slices.SortStableFunc(items, func(a, b *configItem) int { return a.rng.Start.Byte - b.rng.Start.Byte })
	return items
}

// toObjectList returns a list of objects: an object as a list of one element, a list of objects itself,
// otherwise nil.
func toObjectList(v any) []map[string]any {
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

func toList(v any) []any {
	l, _ := v.([]any)
	return l
}

func offsetPosition(src []byte, at int) hcl.Pos {
	text := src[:min(at, len(src))]
	return hcl.Pos{
		Byte:   len(text),
		Line:   1 + bytes.Count(text, []byte("\n")),
		Column: len(text) - bytes.LastIndexByte(text, '\n'),
	}
}

func (i configItem) parseString() (string, error) {
	switch v := i.value.(type) {
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
	switch v := i.value.(type) {
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
	switch v := i.value.(type) {
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
	switch v := i.value.(type) {
	case float64:
		return time.Duration(v), nil
	case string:
		if d, err := time.ParseDuration(v); err == nil && d >= 0 {
			return d, nil
		}
	}
	return 0, errors.New(`must be a duration, such as "90s"`)
}

// parseStringMap returns the settings of a block whose names a user can choose, and whose values are texts.
func (i configItem) parseStringMap() (map[string]string, error) {
	if !i.isBlock() {
		return nil, errors.New("must be a block or an object")
	}
	all := make(map[string]string)
	for _, child := range i.children {
		text, err := child.parseString()
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
