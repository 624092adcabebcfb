package jobspec

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec/jsonschema"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// refusedBlocks are blocks that are refused here. The page does not have their attributes.
var refusedBlocks = map[string]bool{"ConsulConnect": true, "TaskCSIPluginConfig": true, "Multiregion": true, "TaskSchedule": true}

// docs/reference/jobspec.md has each block and attribute that the decoder accepts.
func TestReferenceJobSpecPage(t *testing.T) {
	p := &jobSpecPage{t: t, descriptions: readDescriptions(), defaults: defaultValues()}
	p.text.WriteString("# Job specification\n\n" +
		"This page is generated from the parser's types, from `descriptions.txt` beside it, and from the defaults that the program fills in (`make reference`).\n" +
		"The same descriptions are in `nomad-lite job schema`, for editors. [Run a job](../how-to/run.md#a-file-from-a-cluster) lists what to change in a file from a cluster, and [errors](errors.md) has the refusals with their remedies.\n\n" +
		"A duration is a text such as `\"90s\"`. Defaults are those of a job of type `service`; without one, an attribute is empty, `false` or 0. The last column is empty if nomad-lite does what Nomad does.\n\n" +
		"A file has one `job` block, and `variable`, `variables` and `locals` blocks, as Nomad's. A block `dynamic` generates blocks.\n")
	p.addBody("job", reflect.TypeFor[api.Job]())
	for name := range p.descriptions {
		t.Errorf("descriptions.txt describes %s, which the page does not have", name)
	}
	docpage.Check(t, "reference/jobspec.md", p.text.String())
}

type jobSpecPage struct {
	t            *testing.T
	descriptions map[string]attributeDescription // a description is removed when it has its row
	defaults     map[reflect.Type]reflect.Value
	text         strings.Builder
	done         map[reflect.Type]string // title of the section of a type
}

// addBody adds the section of a block, and then those of the blocks in it.
func (p *jobSpecPage) addBody(title string, body reflect.Type) {
	if p.done == nil {
		p.done = map[reflect.Type]string{}
	}
	p.done[body] = title
	plan := decodePlanOf(body)
	table := docpage.NewTable("Name", "Type", "Default", "Description", "Difference from Nomad")
	for _, attr := range bodySchemaOf(body).Attributes {
		field := fieldOf(plan.attrs, attr.Name)
		kind, value := "string", ""
		if field >= 0 {
			kind, value = attributeTypeText(body.Field(field).Type), p.defaultText(body, field)
		}
		if isBlock(body, attr.Name) {
			continue // the same block can be written as an attribute
		}
		p.addRow(table, body, attr.Name, kind, value)
	}
	type innerBody struct {
		title string
		body  reflect.Type
	}
	var inner []innerBody
	blocks := map[string]reflect.Type{}
	for _, field := range plan.blocks {
		blocks[field.hclName] = body.Field(field.structIndex).Type
	}
	for _, extra := range typeExtensions[body].extraBlocks {
		blocks[extra.Type] = extra.contentStructType
	}
	for _, name := range slices.Sorted(maps.Keys(blocks)) {
		element := blockStructType(blocks[name])
		kind := "block of any names"
		switch {
		case element == nil:
		case refusedBlocks[element.Name()]:
			kind = "block"
		default:
			kind = "block"
			if p.done[element] == "" {
				inner = append(inner, innerBody{name, element})
				p.done[element] = name
			}
		}
		p.addRow(table, body, name, kind, "")
	}
	fmt.Fprintf(&p.text, "\n## %s\n\n%s", title, table)
	for _, b := range inner {
		p.addBody(b.title, b.body)
	}
}

func fieldOf(attrs []plannedField, name string) int {
	for _, f := range attrs {
		if f.hclName == name {
			return f.structIndex
		}
	}
	return -1
}

func isBlock(body reflect.Type, name string) bool {
	return slices.ContainsFunc(bodySchemaOf(body).Blocks, func(b hcl.BlockHeaderSchema) bool { return b.Type == name })
}

func (p *jobSpecPage) addRow(table *docpage.Table, body reflect.Type, name, kind, value string) {
	key := descriptionKey(body, name)
	d, ok := p.descriptions[key]
	delete(p.descriptions, key)
	if !ok {
		p.t.Errorf("descriptions.txt does not have %s", key)
	}
	table.AddRow(docpage.Code(name), kind, docpage.Code(value), d.text, d.difference)
}

func attributeTypeText(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == durationType:
		return "duration"
	case t.Kind() == reflect.Slice:
		return "list of " + attributeTypeText(t.Elem()) + "s"
	case t.Kind() == reflect.Map:
		return "map of " + attributeTypeText(t.Elem()) + "s"
	case t.Kind() == reflect.Interface:
		return "value"
	case t.ConvertibleTo(reflect.TypeFor[float64]()):
		return "number"
	}
	return t.Kind().String()
}

// defaultText returns the default of an attribute, or an empty text for a zero value.
func (p *jobSpecPage) defaultText(body reflect.Type, field int) string {
	value, ok := p.defaults[body]
	if !ok {
		return ""
	}
	v := value.Field(field)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 || v.Kind() == reflect.Map && v.Len() == 0 {
		return ""
	}
	if d, ok := v.Interface().(time.Duration); ok {
		return shortDuration(d)
	}
	if v.Kind() == reflect.String && v.String() == placeholder {
		return ""
	}
	text, err := json.Marshal(v.Interface())
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.Trim(string(text), `"`)
}

// shortDuration returns a duration without parts that are zero.
func shortDuration(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = strings.TrimSuffix(text, zero[1:])
		}
	}
	return text
}

// placeholder is the value of each string that identifies something. It is no default.
const placeholder = "x"

// defaultValues returns a value with the defaults of each struct type of a job, from a service job that has each block once.
func defaultValues() map[reflect.Type]reflect.Value {
	job := &api.Job{ID: new(placeholder), Name: new(placeholder)}
	addBlocks(reflect.ValueOf(job).Elem(), map[reflect.Type]bool{})
	job.ParameterizedJob.Payload = ""
	model.Canonicalize(job)
	values := map[reflect.Type]reflect.Value{}
	collectValues(reflect.ValueOf(job).Elem(), values)
	return values
}

// addBlocks adds one block of each type to a body, except blocks that are refused.
func addBlocks(body reflect.Value, within map[reflect.Type]bool) {
	within = maps.Clone(within)
	within[body.Type()] = true
	for _, f := range decodePlanOf(body.Type()).blocks {
		field := body.Field(f.structIndex)
		element := blockStructType(field.Type())
		if element == nil || within[element] || refusedBlocks[element.Name()] {
			continue
		}
		value := reflect.New(element)
		if before := typeExtensions[element].beforeDecode; before != nil {
			before(value.Interface())
		}
		for i := range element.NumField() {
			if name, kind, _ := strings.Cut(element.Field(i).Tag.Get("hcl"), ","); (kind == "label" || name == "name") && element.Field(i).Type.Kind() == reflect.String {
				value.Elem().Field(i).SetString(placeholder)
			} else if kind == "label" && element.Field(i).Type == reflect.TypeFor[*string]() {
				value.Elem().Field(i).Set(reflect.ValueOf(new(placeholder)))
			}
		}
		addBlocks(value.Elem(), within)
		switch field.Kind() {
		case reflect.Pointer:
			field.Set(value)
		case reflect.Slice:
			if field.Type().Elem().Kind() != reflect.Pointer {
				value = value.Elem()
			}
			field.Set(reflect.Append(field, value))
		case reflect.Map:
			if field.Type().Elem().Kind() == reflect.Pointer {
				field.Set(reflect.MakeMap(field.Type()))
				field.SetMapIndex(reflect.ValueOf(placeholder), value)
			}
		}
	}
}

// collectValues stores the first value of each struct type.
func collectValues(v reflect.Value, values map[reflect.Type]reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			collectValues(v.Elem(), values)
		}
	case reflect.Slice:
		for i := range v.Len() {
			collectValues(v.Index(i), values)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			collectValues(v.MapIndex(key), values)
		}
	case reflect.Struct:
		if _, ok := values[v.Type()]; ok || v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		values[v.Type()] = v
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				collectValues(v.Field(i), values)
			}
		}
	}
}

func TestJSONSchemaHasDescriptions(t *testing.T) {
	definitions := JSONSchema(nil)["$defs"].(map[string]jsonschema.Schema)
	for key, want := range readDescriptions() {
		definition, name, _ := strings.Cut(key, ".")
		properties, ok := definitions[definition]["properties"].(map[string]jsonschema.Schema)
		if !ok {
			t.Errorf("the schema has no definition %s with properties", definition)
			continue
		}
		if got, _ := properties[name]["description"].(string); !strings.HasPrefix(got, want.text) || !strings.HasSuffix(got, want.difference) {
			t.Errorf("the description of %s is %q, want %q and %q", key, got, want.text, want.difference)
		}
	}
}
