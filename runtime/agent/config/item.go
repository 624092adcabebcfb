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

	"github.com/nomad-lite/nomad-lite/plugins/catalog"
)

// item is a setting or a block, from HCL or JSON.
type item struct {
	name      string
	rng       hcl.Range
	value     any     // type is string, float64, bool or []any, or nil
	body      []*item // contents of a block or an object, otherwise nil
	jsonValue any     // the value as encoding/json decodes it, if it is an object or a list of objects
}

// place returns the position of the named setting in the block.
func (i item) place(name string) hcl.Range {
	for _, child := range i.body {
		if child.name == name && child.rng.Filename != "" {
			return child.rng
		}
	}
	return i.rng
}

func (i item) isBlock() bool { return i.body != nil }

// native parses a file in HCL, not JSON. Its plugin blocks are added to the reader's plugins.
func (r *reader) native(filename string, src []byte) []*item {
	d, diags := parseDocument(filename, src)
	r.diags = append(r.diags, diags...)
	if d == nil {
		return nil
	}
	items := r.body(d, d.body, true)
	r.config.Plugins = append(r.config.Plugins, r.plugins...)
	return items
}

func (r *reader) body(d *document, body *hclsyntax.Body, top bool) []*item {
	items := []*item{}
	for _, attr := range body.Attributes {
		value, diags := attr.Expr.Value(nil)
		if diags.HasErrors() {
			wayOut := ""
			switch attr.Expr.(type) {
			case *hclsyntax.TemplateExpr, *hclsyntax.TemplateWrapExpr:
				wayOut = " For a text with ${ in it write $${."
			}
			r.report(hcl.DiagError, d.fileRange(attr.Expr.Range()), "%s: the value must be written out: %s%s", d.settingName(attr), diags[0].Detail, wayOut)
			continue
		}
		i := fromValue(value)
		i.name, i.rng = d.settingName(attr), d.fileRange(attr.NameRange)
		items = append(items, &i)
	}
	for _, b := range body.Blocks {
		if top && b.Type == "plugin" {
			block, diags := d.plugin(b)
			r.diags = append(r.diags, diags...)
			if !diags.HasErrors() {
				r.diags = append(r.diags, r.plugins.add(block)...)
			}
			continue
		}
		i := item{name: b.Type, rng: d.fileRange(b.DefRange()), body: r.body(d, b.Body, false)}
		for _, label := range slices.Backward(b.Labels) {
			i = item{name: b.Type, rng: i.rng, body: []*item{{name: label, rng: i.rng, body: i.body}}}
		}
		items = append(items, &i)
	}
	slices.SortStableFunc(items, func(a, b *item) int { return a.rng.Start.Byte - b.rng.Start.Byte })
	return items
}

// fromValue converts an HCL value to an item; an object becomes a block.
func fromValue(v cty.Value) item {
	switch {
	case v.IsNull() || !v.IsKnown():
		return item{}
	case v.Type() == cty.String:
		return item{value: v.AsString()}
	case v.Type() == cty.Bool:
		return item{value: v.True()}
	case v.Type() == cty.Number:
		f, _ := v.AsBigFloat().Float64()
		return item{value: f}
	case v.Type().IsObjectType() || v.Type().IsMapType():
		i := item{body: []*item{}}
		for key, element := range v.Elements() {
			child := fromValue(element)
			child.name = key.AsString()
			i.body = append(i.body, &child)
		}
		return i
	}
	list := []any{}
	for _, element := range v.Elements() {
		list = append(list, fromValue(element).value)
	}
	return item{value: list}
}

// json parses a file in JSON, where a block is an object or a list of objects. The position of a
// setting is the line of its name.
func (r *reader) json(filename string, src []byte) []*item {
	d := json.NewDecoder(bytes.NewReader(src))
	var top map[string]any
	err := d.Decode(&top)
	if err == nil && d.More() {
		err = errors.New("there is something after the object")
	}
	if err != nil {
		pos := hcl.InitialPos
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			pos = position(src, int(syntax.Offset))
		}
		r.report(hcl.DiagError, hcl.Range{Filename: filename, Start: pos, End: pos}, "not a JSON object: %v", err)
		return nil
	}
	place := func(name string) hcl.Range {
		at := max(bytes.Index(src, []byte(strconv.Quote(name))), 0)
		return hcl.Range{Filename: filename, Start: position(src, at), End: position(src, at)}
	}
	if plugins, ok := top["plugin"]; ok {
		delete(top, "plugin")
		r.jsonPlugins(plugins, place)
	}
	return objectItems(top, place)
}

// jsonPlugins reads plugin blocks in JSON: {"NAME": {"args": […], "config": {…}}}, or a list of such
// objects.
func (r *reader) jsonPlugins(v any, place func(string) hcl.Range) {
	for _, plugins := range objects(v) {
		for _, name := range slices.Sorted(maps.Keys(plugins)) {
			block := catalog.Block{Name: name, Range: place(name)}
			for _, content := range objects(plugins[name]) {
				for _, arg := range list(content["args"]) {
					block.Args = append(block.Args, fmt.Sprint(arg))
				}
				for _, config := range objects(content["config"]) {
					block.Config = config
				}
			}
			r.config.Plugins = append(r.config.Plugins, block)
		}
	}
}

func objectItems(m map[string]any, place func(string) hcl.Range) []*item {
	items := []*item{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		i := item{name: name, rng: place(name), value: m[name]}
		if blocks := objects(m[name]); blocks != nil {
			i.value, i.body, i.jsonValue = nil, []*item{}, m[name]
			for _, b := range blocks {
				i.body = append(i.body, objectItems(b, place)...)
			}
		}
		items = append(items, &i)
	}
	slices.SortStableFunc(items, func(a, b *item) int { return a.rng.Start.Byte - b.rng.Start.Byte })
	return items
}

// objects returns a list of objects: an object as a list of one element, a list of objects itself,
// otherwise nil.
func objects(v any) []map[string]any {
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

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func position(src []byte, at int) hcl.Pos {
	text := src[:min(at, len(src))]
	return hcl.Pos{
		Byte:   len(text),
		Line:   1 + bytes.Count(text, []byte("\n")),
		Column: len(text) - bytes.LastIndexByte(text, '\n'),
	}
}

func (i item) text() (string, error) {
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

func (i item) boolean() (bool, error) {
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

func (i item) number() (float64, error) {
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

// duration parses a duration, given as a text like "90s" or as a number of nanoseconds.
func (i item) duration() (time.Duration, error) {
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

// texts returns the settings of a block whose names a user can choose, and whose values are texts.
func (i item) texts() (map[string]string, error) {
	if !i.isBlock() {
		return nil, errors.New("must be a block or an object")
	}
	all := make(map[string]string)
	for _, child := range i.body {
		text, err := child.text()
		if err != nil {
			return nil, fmt.Errorf("%s %w", child.name, err)
		}
		all[child.name] = text
	}
	return all, nil
}

// words splits a comma-separated list into its elements.
func words(text string) []string {
	var all []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			all = append(all, word)
		}
	}
	return all
}
