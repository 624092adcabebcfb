package jobspec

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/schematest"
)

// shipDriver is a schema with each kind of part.
var shipDriver = hclspec.Object(map[string]*hclspec.Spec{
	"image":  hclspec.Attr("image", "string", true),
	"pull":   hclspec.Default(hclspec.Attr("pull", "bool", false), hclspec.Literal("true")),
	"args":   hclspec.Attr("args", "list(string)", false),
	"limits": hclspec.Attr("limits", "map(number)", false),
	"opts":   hclspec.Attr("opts", "any", false),
	"pair":   hclspec.Attr("pair", "tuple([string, bool])", false),
	"size":   hclspec.Attr("size", "object({width = number})", false),
	"labels": hclspec.BlockAttrs("labels", "string", false),
	"mount":  hclspec.BlockList("mount", hclspec.Object(map[string]*hclspec.Spec{"source": hclspec.Attr("source", "string", true)}), 0, 0),
	"device": hclspec.BlockMap("device", []string{"name"}, hclspec.Object(map[string]*hclspec.Spec{"path": hclspec.Attr("path", "string", false)})),
})

// schemaText returns the text of the JSON Schema with shipDriver.
func schemaText(t *testing.T) []byte {
	t.Helper()
	text, err := json.Marshal(JSONSchema(map[string]*hclspec.Spec{"ship": shipDriver, "unknown": nil}))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// compileSchema returns the function that validates a file by the JSON Schema.
func compileSchema(t *testing.T) func(file []byte) error {
	t.Helper()
	return schematest.Compile(t, schemaText(t))
}

// bodyRecorder is a body with one block of each type that the decoder requests. It compares the requested
// attributes and blocks with the properties of a JSON Schema.
type bodyRecorder struct {
	t        *testing.T
	document map[string]any
	schema   map[string]any // schema of this body
	path     []string
	bodies   *int // number of bodies that were compared
}

func (b *bodyRecorder) Content(requested *hcl.BodySchema) (*hcl.BodyContent, hcl.Diagnostics) {
	if hasScopedBodyAttribute(requested) {
		if _, closed := b.schema["properties"].(map[string]any); closed && b.schema["additionalProperties"] == false {
			b.t.Errorf("%s: the parser accepts any name, and the schema does not", strings.Join(b.path, "."))
		}
		return &hcl.BodyContent{}, hcl.Diagnostics{errorAt("End of test", "", hcl.Range{})}
	}
	*b.bodies++
	properties, _ := b.schema["properties"].(map[string]any)
	want := map[string]bool{"//": true}
	content := &hcl.BodyContent{}
	for _, attr := range requested.Attributes {
		want[attr.Name] = true
	}
	for _, block := range requested.Blocks {
		want[block.Type], want["dynamic"] = true, true
		nested := &bodyRecorder{b.t, b.document, b.unwrap(properties[block.Type], len(block.LabelNames)), joinPath(b.path, block.Type), b.bodies}
		labels := slices.Repeat([]string{"cpu"}, len(block.LabelNames)) // the label of scaling is checked
		content.Blocks = append(content.Blocks, &hcl.Block{Type: block.Type, Labels: labels, LabelRanges: make([]hcl.Range, len(labels)), Body: nested})
	}
	if got, want := slices.Sorted(maps.Keys(properties)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
		b.t.Errorf("%s: the schema has %v, the parser accepts %v", strings.Join(b.path, "."), got, want)
	}
	return content, nil
}

// unwrap returns the schema of the content of a block.
func (b *bodyRecorder) unwrap(schema any, labels int) map[string]any {
	s, _ := schema.(map[string]any)
	if alternatives, ok := s["anyOf"].([]any); ok {
		s = alternatives[0].(map[string]any)
	}
	if labels > 0 {
		return b.unwrap(s["additionalProperties"], labels-1)
	}
	if ref, ok := s["$ref"].(string); ok {
		return b.document["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	}
	return s
}

func (b *bodyRecorder) PartialContent(requested *hcl.BodySchema) (*hcl.BodyContent, hcl.Body, hcl.Diagnostics) {
	content, diags := b.Content(requested)
	return content, b, diags
}

func (b *bodyRecorder) JustAttributes() (hcl.Attributes, hcl.Diagnostics) { return nil, nil }
func (b *bodyRecorder) MissingItemRange() hcl.Range                       { return hcl.Range{} }

func TestJSONSchemaHasEachPartThatParserAccepts(t *testing.T) {
	var document map[string]any
	if err := json.Unmarshal(schemaText(t), &document); err != nil {
		t.Fatal(err)
	}
	body := &bodyRecorder{t: t, document: document, path: []string{"job"}, bodies: new(int)}
	body.schema = body.unwrap(document["properties"].(map[string]any)["job"], 1)
	d := &decoder{budget: &evaluationBudget{maxCost: maxEvaluationCost}, ranges: sourceRangeByPath{}}
	d.decodeStruct(body, reflect.ValueOf(&api.Job{}).Elem(), nil)
	if *body.bodies < 50 {
		t.Errorf("the parser has requested only %d bodies", *body.bodies)
	}
}

func TestJSONSchemaAgreesWithParser(t *testing.T) {
	validate := compileSchema(t)
	const task = `"driver": "raw_exec"`
	inTask := func(body string) string { return `{"job": {"j": {"group": {"g": {"task": {"t": {` + body + `}}}}}}}` }
	for name, test := range map[string]struct {
		file  string
		valid bool
	}{
		"job":                          {`{"job": {"j": {"group": {"g": {"count": 2, "task": {"t": {` + task + `}}}}}}}`, true},
		"lists of blocks":              {`{"job": [{"j": [{"group": [{"g": {"task": [{"t": {` + task + `}}, {"u": {` + task + `}}]}}]}]}]}`, true},
		"comments":                     {`{"//": "a", "job": {"j": {"//": 1, "group": {"g": {"//": []}}}}}`, true},
		"no job":                       {`{}`, true}, // a rule that needs more than a schema of a body
		"unknown part of the file":     {`{"job": {"j": {}}, "other": {}}`, false},
		"unknown attribute of the job": {`{"job": {"j": {"prioritty": 3}}}`, false},
		"unknown block of a group":     {`{"job": {"j": {"group": {"g": {"taks": {"t": {}}}}}}}`, false},
		"unknown attribute of a task":  {inTask(`"drivr": "x"`), false},
		"job without a name":           {`{"job": {"group": {"g": {"count": 1}}}}`, false},
		"task without a name":          {`{"job": {"j": {"group": {"g": {"task": {"driver": "x"}}}}}}`, false},
		"attribute that is an object":  {`{"job": {"j": {"priority": {}}}}`, false},
		"text in place of a number":    {`{"job": {"j": {"priority": "high"}}}`, false},
		"number in a text":             {`{"job": {"j": {"priority": "30"}}}`, true},
		"number from an expression":    {`{"variable": {"p": {"default": 3}}, "job": {"j": {"priority": "${var.p}"}}}`, true},
		"text in place of a bool":      {`{"job": {"j": {"all_at_once": "maybe"}}}`, false},
		"bool in a text":               {`{"job": {"j": {"all_at_once": "true"}}}`, true},
		"text in place of a list":      {`{"job": {"j": {"datacenters": "dc1"}}}`, false},
		"list of other than texts":     {`{"job": {"j": {"datacenters": [{}]}}}`, false},
		"duration":                     {inTask(`"kill_timeout": "1h30m"`), true},
		"duration in nanoseconds":      {inTask(`"kill_timeout": 5000000000`), true},
		"duration without a unit":      {inTask(`"kill_timeout": "5"`), false},
		"meta and env":                 {`{"job": {"j": {"meta": {"a": 1, "b": true}, "group": {"g": {"task": {"t": {"env": [{"A": "b"}]}}}}}}}`, true},
		"list in meta":                 {`{"job": {"j": {"meta": {"a": []}}}}`, false},
		"shorthands":                   {`{"job": {"j": {"constraint": [{"distinct_hosts": true}, {"attribute": "${attr.a}", "is_set": true}], "vault": {"role": "r"}, "task": {"t": {}}}}}`, true},
		"unknown shorthand":            {`{"job": {"j": {"constraint": {"distinct_host": true}}}}`, false},
		"absent block":                 {`{"job": {"j": {"update": null}}}`, true},
		"dynamic block": {`{"job": {"j": {"dynamic": {"group": {"for_each": ["a"], "iterator": "i", "labels": ["${i.value}"], "content": {
			"dynamic": [{"constraint": [{"for_each": [1], "content": {"value": "x"}}]}]}}}}}}`, true},
		"dynamic block of an unknown type":       {`{"job": {"j": {"dynamic": {"grop": {"for_each": ["a"], "labels": ["x"], "content": {}}}}}}`, false},
		"dynamic block with unknown content":     {`{"job": {"j": {"dynamic": {"group": {"for_each": ["a"], "labels": ["x"], "content": {"conut": 1}}}}}}`, false},
		"dynamic block without for_each":         {`{"job": {"j": {"dynamic": {"group": {"labels": ["x"], "content": {}}}}}}`, false},
		"variables and locals":                   {`{"variable": {"v": {"type": "string", "default": "a", "description": "d", "validation": {"condition": "${var.v != \"\"}", "error_message": "Empty."}}}, "variables": {"w": 1}, "locals": {"l": [1]}, "job": {"j": {}}}`, true},
		"unknown attribute of a variable":        {`{"variable": {"v": {"defualt": "a"}}, "job": {"j": {}}}`, false},
		"validation without a message":           {`{"variable": {"v": {"default": "a", "validation": {"condition": "${var.v != \"\"}"}}}, "job": {"j": {}}}`, false},
		"config block of a driver of any schema": {inTask(`"driver": "unknown", "config": {"a": {"b": [1]}}`), true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := validate([]byte(test.file)); (err == nil) != test.valid {
				t.Errorf("schema: %v, want valid %v", err, test.valid)
			}
			if name == "no job" {
				return
			}
			if _, diags := Parse(ParseInput{DiagnosticFileName: "job.json", Text: []byte(test.file), RejectsUndeclaredVariables: true}); diags.HasErrors() == test.valid {
				t.Errorf("parser: %v, want valid %v", diags, test.valid)
			}
		})
	}
}

func TestJSONSchemaAgreesWithSchemaOfDriver(t *testing.T) {
	validate := compileSchema(t)
	for name, test := range map[string]struct {
		config string
		valid  bool
	}{
		"all": {`{"image": "i", "pull": false, "args": ["a", 1], "limits": {"a": "3"}, "opts": {"x": [1]}, "pair": ["a", true], "size": {"width": 1},
			"labels": {"a": "b"}, "mount": [{"source": "a"}, {"source": "b"}], "device": {"d": {"path": "p"}, "e": [{}]}, "//": "comment"}`, true},
		"one block":                  {`{"image": "i", "mount": {"source": "a"}}`, true},
		"references":                 {`{"image": "${meta.image}", "args": "${meta.args}", "pull": "${meta.pull}"}`, true},
		"unknown argument":           {`{"image": "i", "imgae": "j"}`, false},
		"unknown argument of block":  {`{"image": "i", "mount": {"source": "a", "target": "b"}}`, false},
		"missing argument":           {`{"args": []}`, false},
		"missing argument of block":  {`{"image": "i", "mount": {}}`, false},
		"object in place of text":    {`{"image": {}}`, false},
		"text in place of bool":      {`{"image": "i", "pull": "perhaps"}`, false},
		"text in place of list":      {`{"image": "i", "args": "a"}`, false},
		"text in place of number":    {`{"image": "i", "limits": {"a": "many"}}`, false},
		"short tuple":                {`{"image": "i", "pair": ["a"]}`, false},
		"missing attribute":          {`{"image": "i", "size": {}}`, false},
		"block without a label":      {`{"image": "i", "device": {"path": "p"}}`, false},
		"block of wrong type":        {`{"image": "i", "mount": "a"}`, false},
		"list in block of any names": {`{"image": "i", "labels": {"a": []}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			file := `{"job": {"j": {"group": {"g": {"task": {"t": {"driver": "ship", "config": ` + test.config + `}}}}}}}`
			if err := validate([]byte(file)); (err == nil) != test.valid {
				t.Errorf("schema: %v, want valid %v", err, test.valid)
			}
			parsed, diags := Parse(ParseInput{DiagnosticFileName: "job.json", Text: []byte(file), RejectsUndeclaredVariables: true})
			if diags.HasErrors() {
				t.Fatal(diags)
			}
			if diags := block.Check(t.Context(), shipDriver, parsed.Job.TaskGroups[0].Tasks[0].Config); diags.HasErrors() == test.valid {
				t.Errorf("driver: %v, want valid %v", diags, test.valid)
			}
		})
	}
}

func TestReadDriverSchemas(t *testing.T) {
	drivers, err := ReadDriverSchemas(schemaText(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(drivers) != 2 || drivers["unknown"] != nil || drivers["ship"].Text() != shipDriver.Text() {
		t.Errorf("got %v", drivers)
	}
	for _, text := range []string{"", "[]", "{}", `{"x-nomad-lite-drivers": 1}`, `{"x-nomad-lite-drivers": {"a": {"colour": 1}}}`} {
		if _, err := ReadDriverSchemas([]byte(text)); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
}

// TestJSONSchemaAcceptsCorpus converts the valid files of the corpus from native syntax to JSON.
func TestJSONSchemaAcceptsCorpus(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(corpusDir(t), "*.nomad.hcl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no job files: %v", err)
	}
	validate := compileSchema(t)
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			converted := convertToJSON(t, text)
			if err := validate(converted); err != nil {
				t.Errorf("%v\n%s", err, converted)
			}
			asJSON := filepath.Join(t.TempDir(), filepath.Base(path))
			if err := os.WriteFile(asJSON, converted, 0o600); err != nil {
				t.Fatal(err)
			}
			if diff := jsonDiff(t, readExpectedJSON(t, asJSON), readExpectedJSON(t, path)); diff != "" {
				t.Errorf("the JSON is of another job: %s", diff)
			}
		})
	}
}

// converter converts native HCL to HCL's JSON profile.
type converter struct{ text []byte }

func convertToJSON(t *testing.T, text []byte) []byte {
	t.Helper()
	file, diags := hclsyntax.ParseConfig(text, "job", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	out, err := json.MarshalIndent(converter{text}.body(file.Body.(*hclsyntax.Body), "", false), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// body returns a body in JSON. In a body without a schema, an object is a list with one object.
func (c converter) body(body *hclsyntax.Body, block string, schemaless bool) map[string]any {
	schemaless = schemaless || block == "config"
	out := make(map[string]any)
	for name, attr := range body.Attributes {
		switch {
		case block == "variable" && name == "type", name == "iterator":
			out[name] = c.source(attr.Expr)
		case schemaless && isObjectLiteral(attr.Expr):
			out[name] = []any{c.value(attr.Expr)}
		default:
			out[name] = c.value(attr.Expr)
		}
	}
	for _, nested := range body.Blocks {
		var content any = c.body(nested.Body, nested.Type, schemaless)
		for _, label := range slices.Backward(nested.Labels) {
			if schemaless {
				content = []any{content}
			}
			content = map[string]any{label: content}
		}
		list, _ := out[nested.Type].([]any)
		out[nested.Type] = append(list, content)
	}
	return out
}

func (c converter) source(expr hcl.Expression) string { return string(expr.Range().SliceBytes(c.text)) }

func (c converter) value(expr hclsyntax.Expression) any {
	switch expr := expr.(type) {
	case *hclsyntax.TupleConsExpr:
		list := []any{}
		for _, element := range expr.Exprs {
			list = append(list, c.value(element))
		}
		return list
	case *hclsyntax.ObjectConsExpr:
		out := make(map[string]any)
		for _, item := range expr.Items {
			key, diags := item.KeyExpr.Value(nil)
			if diags.HasErrors() {
				out["${"+c.source(item.KeyExpr)+"}"] = c.value(item.ValueExpr)
			} else {
				out[key.AsString()] = c.value(item.ValueExpr)
			}
		}
		return out
	case *hclsyntax.TemplateExpr:
		var text strings.Builder
		for _, part := range expr.Parts {
			if literal, ok := part.(*hclsyntax.LiteralValueExpr); ok {
				text.WriteString(escapeTemplate(literal.Val.AsString()))
			} else {
				text.WriteString("${" + c.source(part) + "}")
			}
		}
		return text.String()
	case *hclsyntax.TemplateWrapExpr:
		return "${" + c.source(expr.Wrapped) + "}"
	}
	val, diags := expr.Value(nil)
	if diags.HasErrors() {
		return "${" + c.source(expr) + "}"
	}
	plain, err := toPlainValue(val)
	if err != nil {
		return "${" + c.source(expr) + "}"
	}
	if text, ok := plain.(string); ok {
		return escapeTemplate(text)
	}
	return plain
}

func escapeTemplate(text string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(text)
}
