package jobspec

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/runtime/job/fileaccess"
)

// jobWithTaskBody returns a job with one task.
func jobWithTaskBody(x string) string {
	return "job \"j\" {\ngroup \"g\" {\ntask \"t\" {\ndriver = \"d\"\n" + x + "\n}\n}\n}\n"
}

func jobWithConfig(x string) string { return jobWithTaskBody("config {\n" + x + "\n}") }

// parseCase is a job text with its expected result. The name starts with the number of the rule of
// the language that the case tests.
type parseCase struct {
	name string
	text string
	// vars, environ and files are the sources of variables; files are texts.
	vars, environVars, files []string
	lax                      bool // not strict
	// at is the compared path of the output, such as "TaskGroups.0.Tasks.0.Config".
	at   string
	want string // JSON
	// wantErrors are the diagnostics in Nomad's format; the file and the position are omitted where
	// they do not matter.
	wantErrors []string
	// wantWarnings must be part of the warnings.
	wantWarnings []string
}

const (
	taskPath   = "TaskGroups.0.Tasks.0"
	configPath = taskPath + ".Config"
	envPath    = taskPath + ".Env"
)

func (p parseCase) parse(t *testing.T) (*ParsedFile, hcl.Diagnostics) {
	t.Helper()
	src := ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(p.text), VarAssignments: p.vars, Environ: p.environVars, Files: fileaccess.NewReader(fileaccess.Policy{}), RejectsUndeclaredVariables: !p.lax}
	for i, text := range p.files {
		path := filepath.Join(t.TempDir(), []string{"one.hcl", "two.hcl"}[i])
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		src.VarFilePaths = append(src.VarFilePaths, path)
	}
	return Parse(src)
}

func (p parseCase) run(t *testing.T) {
	file, diags := p.parse(t)
	for _, want := range p.wantWarnings {
		if !slices.ContainsFunc(diags, func(d *hcl.Diagnostic) bool {
			return d.Severity == hcl.DiagWarning && strings.Contains(d.Error(), want)
		}) {
			t.Errorf("no warning %q in %v", want, diags.Error())
		}
	}
	if len(p.wantErrors) > 0 {
		p.checkErrors(t, diags)
		return
	}
	if diags.HasErrors() {
		t.Fatal(NomadErrorText(diags))
	}
	if p.at == "" {
		return
	}
	var b bytes.Buffer
	if err := EncodeJobRunOutput(&b, file.Job); err != nil {
		t.Fatal(err)
	}
	got := jsonValueAt(t, b.Bytes(), p.at)
	var want any
	if err := json.Unmarshal([]byte(p.want), &want); err != nil {
		t.Fatalf("want %s: %v", p.want, err)
	}
	if !reflect.DeepEqual(got, want) {
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("%s is %s, want %s", p.at, text, p.want)
	}
}

// checkErrors compares the lines of Nomad's text with the expected lines, in any order.
func (p parseCase) checkErrors(t *testing.T, diags hcl.Diagnostics) {
	t.Helper()
	text := NomadErrorText(diags)
	for _, want := range p.wantErrors {
		if !strings.Contains(text, want) {
			t.Errorf("got %s\nwant %s", text, want)
		}
	}
	if n := len(onlyErrors(diags)); n == 0 {
		t.Error("accepted")
	}
}

func jsonValueAt(t *testing.T, text []byte, at string) any {
	t.Helper()
	var v struct{ Job any }
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	value := v.Job
	for step := range strings.SplitSeq(at, ".") {
		switch in := value.(type) {
		case map[string]any:
			next, ok := in[step]
			if !ok {
				return "absent"
			}
			value = next
		case []any:
			i := int(step[0] - '0')
			if i >= len(in) {
				return "absent"
			}
			value = in[i]
		default:
			return "absent"
		}
	}
	return value
}

func runParseCases(t *testing.T, edges []parseCase) {
	t.Helper()
	for _, e := range edges {
		t.Run(e.name, func(t *testing.T) { t.Parallel(); e.run(t) })
	}
}

// TestParsingEdgeCases covers parsing alone: package model tests validation.
func TestParsingEdgeCases(t *testing.T) {
	runParseCases(t, []parseCase{
		{name: "HCL JSON that begins with a line end is native", text: "\n{\"job\":{\"j\":{}}}",
			wantErrors: []string{"in.hcl:2,1-2: Argument or block definition required; An argument or block definition is required here."}},
		{name: "references survive in HCL JSON", text: `{"job":{"j":{"group":{"g":{"task":{"t":{"driver":"d","config":{"args":["-c","${attr.kernel.name}"]}}}}}}}}`,
			at: configPath + ".args", want: `["-c","${attr.kernel.name}"]`},
		{name: "an object in HCL JSON stays an object", text: `{"job":{"j":{"group":{"g":{"task":{"t":{"config":{"m":{"a":1}}}}}}}}}`,
			at: configPath, want: `{"m":{"a":1}}`},
		{name: "an object literal in native syntax is a list", text: jobWithConfig("m = { a = 1 }"), at: configPath, want: `{"m":[{"a":1}]}`},
		{name: "labels in config nest", text: jobWithConfig("lab \"two\" \"three\" { a = 2 }"), at: configPath, want: `{"lab":[{"two":[{"three":[{"a":2}]}]}]}`},
		{name: "a null in config is dropped at the top", text: jobWithConfig("a = null\nb = [null]"), at: configPath, want: `{"b":[null]}`},
		{name: "a block in config wins over an attribute", text: jobWithConfig("a = 1\na { b = 1 }"), at: configPath, want: `{"a":[{"b":1}]}`},
		{name: "a dynamic block in config is data", text: jobWithConfig("dynamic \"port\" {\nfor_each = [1,2]\ncontent { x = port.value }\n}"),
			at: configPath, want: `{"dynamic":[{"port":[{"content":[{"x":"${port.value}"}],"for_each":[1,2]}]}]}`},
		{name: "functions act on the text of a reference", text: jobWithConfig(`a = "${upper(attr.kernel.name)}"`), at: configPath, want: `{"a":"${ATTR.KERNEL.NAME}"}`},
		{name: "an escaped reference looks like a surviving one", text: jobWithConfig("a = \"$${attr.foo}\"\nb = \"${attr.foo}\""), at: configPath, want: `{"a":"${attr.foo}","b":"${attr.foo}"}`},
		{name: "arithmetic on a reference", text: jobWithConfig(`a = "${NOMAD_PORT_http + 1}"`),
			wantErrors: []string{"Invalid operand; Unsuitable value for left operand: a number is required., and 1 other diagnostic(s)"}},
		{name: "a bare number is nanoseconds", text: jobWithTaskBody("kill_timeout = 10"), at: taskPath + ".KillTimeout", want: `10`},
		{name: "days are no duration", text: jobWithTaskBody(`kill_timeout = "1d"`),
			wantErrors: []string{`Unsuitable value type; Unsuitable duration value: time: unknown unit "d" in duration "1d"`}},
		{name: "any is no type", text: "variable \"x\" {\n type = any\n}\njob \"j\" {}\n",
			wantErrors: []string{`Invalid type specification; The keyword "any" cannot be used in this type specification: an exact type is required.`}},
		{name: "an unset variable", text: "variable \"x\" {}\njob \"j\" {}\n",
			wantErrors: []string{`in.hcl:1,1-13: Unset variable "x"; A used variable must be set or have a default value; see https://developer.hashicorp.com/nomad/docs/reference/hcl2/variables  for details.`}},
		{name: "text for a bool is an expression", text: "variable \"x\" {\n type = bool\n}\njob \"j\" {}\n", vars: []string{"x=yes"},
			wantErrors: []string{"<value for var.x from arguments>:1,1-4: Variables not allowed; Variables may not be used here."}},
		{name: "the command line wins", text: "variable \"x\" {}\njob \"j\" {\nmeta {\n a = var.x\n}\n}\n", environVars: []string{"NOMAD_VAR_x=e"}, files: []string{`x = "f"`}, vars: []string{"x=c"}, at: "Meta.a", want: `"c"`},
		{name: "a variable file wins over the environment", text: "variable \"x\" {}\njob \"j\" {\nmeta {\n a = var.x\n}\n}\n", environVars: []string{"NOMAD_VAR_x=e"}, files: []string{`x = "f"`}, at: "Meta.a", want: `"f"`},
		{name: "a later variable file wins", text: "variable \"x\" {}\njob \"j\" {\nmeta {\n a = var.x\n}\n}\n", files: []string{`x = "f"`, `x = "g"`}, at: "Meta.a", want: `"g"`},
		{name: "-var without an equals sign is dropped", text: "variable \"x\" {\n default = 1\n}\njob \"j\" {\nmeta {\n a = var.x\n}\n}\n", vars: []string{"x"}, at: "Meta.a", want: `"1"`},
		{name: "a later local wins", text: "locals {\n b = 1\n}\nlocals {\n b = 2\n}\njob \"j\" {\nmeta {\n a = local.b\n}\n}\n", at: "Meta.a", want: `"2"`, wantWarnings: []string{"Duplicate local"}},
		{name: "the weight of an affinity is at most 100", text: "job \"j\" {\naffinity {\nattribute = \"x\"\nvalue = \"y\"\nweight = 300\n}\n}\n",
			wantErrors: []string{"in.hcl:5,10-13: Weight out of range; The weight of an affinity must be between -100 and 100, not 300."}},
		{name: "the weight of an affinity is at least -100", text: "job \"j\" {\naffinity {\nweight = -101\n}\n}\n", wantErrors: []string{"not -101."}},
		{name: "set_contains_any is the operator of a constraint", text: "job \"j\" {\nconstraint {\nattribute = \"${attr.x}\"\nset_contains_any = \"a\"\n}\n}\n",
			at: "Constraints.0", want: `{"LTarget":"${attr.x}","RTarget":"a","Operand":"set_contains_any"}`},
		{name: "reserved_ports is lost beside a port", text: "job \"j\" {\ngroup \"g\" {\nnetwork {\nport \"a\" {}\nreserved_ports \"q\" { static = 1 }\n}\n}\n}\n",
			at: "TaskGroups.0.Networks.0.ReservedPorts", want: `null`, wantWarnings: []string{"reserved_ports"}},
		{name: "the port stays", text: "job \"j\" {\ngroup \"g\" {\nnetwork {\nport \"a\" {}\nreserved_ports \"q\" { static = 1 }\n}\n}\n}\n",
			at: "TaskGroups.0.Networks.0.DynamicPorts.0.Label", want: `"a"`},
		{name: "a task in the job comes before the groups", text: "job \"j\" {\ngroup \"g\" {}\ntask \"solo\" {}\n}\n", at: "TaskGroups.0.Name", want: `"solo"`},
		{name: "and its group holds it", text: "job \"j\" {\ngroup \"g\" {}\ntask \"solo\" {}\n}\n", at: "TaskGroups.0.Tasks.0.Name", want: `"solo"`},
		{name: "a file is looked up in the working directory", text: jobWithConfig(`a = file("only-in-sub.txt")`), wantErrors: []string{"no file exists at only-in-sub.txt"}},
		{name: "without strictness an undeclared variable is skipped", text: "job \"j\" {}\n", files: []string{"zz = 1"}, lax: true, at: "ID", want: `"j"`},
		{name: "two arguments in one line", text: jobWithTaskBody(`env { A = "x" B = "y" }`),
			wantErrors: []string{"Invalid single-argument block definition; A single-line block definition must end with a closing brace immediately after its single argument definition."}},
	})
}

// TestExpressionForms covers the forms of a job file: one job, in native syntax or
// JSON.
func TestExpressionForms(t *testing.T) {
	runParseCases(t, []parseCase{
		{name: "1.1 spaces before the brace are skipped", text: `   {"job":{"j":{}}}`, at: "ID", want: `"j"`},
		{name: "1.1 a tab is not", text: "\t{\"job\":{\"j\":{}}}", wantErrors: []string{"Argument or block definition required"}},
		{name: "1.1 API JSON is not HCL JSON", text: `{"Job":{"ID":"j"}}`, wantErrors: []string{`Extraneous JSON object property; No argument or block type is named "Job". Did you mean "job"?`}},
		{name: "1.2 comments", text: "# a\n// b\n/* c */\njob \"j\" {}\n", at: "ID", want: `"j"`},
		{name: "1.2 bare labels", text: "job j {\n group g {}\n}\n", at: "TaskGroups.0.Name", want: `"g"`},
		{name: "1.2 no template in a label", text: "job \"${x}\" {}\n", wantErrors: []string{`Invalid string literal; Template sequences are not allowed in this string. To include a literal "$", double it (as "$$") to escape it.`}},
		{name: "1.2 one attribute in one line", text: jobWithTaskBody(`env { A = "x" }`), at: envPath, want: `{"A":"x"}`},
		{name: "1.2 no block in one line", text: "job \"j\" { group \"g\" { } }\n", wantErrors: []string{"Argument definition required"}},
		{name: "1.2 no quoted argument name", text: jobWithTaskBody("env {\n \"a.b\" = 1\n}"), wantErrors: []string{"Invalid argument name; Argument names must not be quoted."}},
		{name: "1.2 an attribute twice", text: "job \"j\" {\n type = \"a\"\n type = \"b\"\n}\n", wantErrors: []string{`in.hcl:3,2-6: Attribute redefined; The argument "type" was already set at in.hcl:2,2-6. Each argument may be set only once.`}},
		{name: "1.2 byte order mark and CRLF", text: "\xef\xbb\xbfjob \"j\" {\r\n\ttype = \"batch\"\r\n}\r\n", at: "Type", want: `"batch"`},
		{name: "1.2 escapes", text: jobWithConfig(`a = "\n\r\t\"\\\u00e9\U0001F600$${x}%%{y}"`), at: configPath + ".a", want: `"\n\r\t\"\\é😀${x}%{y}"`},
		{name: "1.2 heredoc", text: jobWithConfig("a = <<EOF\n  x\\n ${attr.y} $${z}\nEOF"), at: configPath + ".a", want: `"  x\\n ${attr.y} ${z}\n"`},
		{name: "1.2 flush heredoc", text: jobWithConfig("a = <<-EOF\n    x\n      y\n    EOF"), at: configPath + ".a", want: `"x\n  y\n"`},
		{name: "1.2 a percent brace that is no directive", text: jobWithConfig("a = <<EOF\n%{http_code}\nEOF"), wantErrors: []string{"Invalid template control keyword"}},
		{name: "1.2 consul-template is text", text: jobWithConfig(`a = "{{ env \"X\" }}"`), at: configPath + ".a", want: `"{{ env \"X\" }}"`},
		{name: "1.3 no job", text: "variable \"x\" {\n default = 1\n}\n", wantErrors: []string{"Missing job block; A job block is required"}},
		{name: "1.3 two jobs", text: "job \"a\" {}\njob \"b\" {}\n", wantErrors: []string{`in.hcl:2,1-8: Duplicate job block; Only one block of type "job" is allowed. Previous definition was at in.hcl:1,1-8`}},
		{name: "1.3 an unknown block", text: "jib \"a\" {}\n", wantErrors: []string{`Unsupported block type; Blocks of type "jib" are not expected here. Did you mean "job"?`}},
		{name: "1.3 an unknown argument", text: "foo = 1\njob \"j\" {}\n", wantErrors: []string{`Unsupported argument; An argument named "foo" is not expected here.`}},
		{name: "1.3 no label", text: "job {}\n", wantErrors: []string{"Missing name for job; All job blocks must have 1 labels (name)."}},
		{name: "1.3 two labels", text: "job \"a\" \"b\" {}\n", wantErrors: []string{"Extraneous label for job; Only 1 labels (name) are expected for job blocks."}},
		{name: "1.3 an empty label parses", text: "job \"\" {}\n", at: "ID", want: `""`},
		{name: "1.3 an empty file", text: "", wantErrors: []string{"Missing job block"}},
	})
}

// TestVariables covers the types, sources and errors of input variables.
func TestVariables(t *testing.T) {
	with := func(decl string) string {
		return "variable \"x\" {\n" + decl + "\n}\njob \"j\" {\n meta {\n a = jsonencode(var.x)\n}\n}\n"
	}
	const a = "Meta.a"
	runParseCases(t, []parseCase{
		{name: "an unknown attribute of a declaration", text: with("sensitive = true"), wantErrors: []string{`An argument named "sensitive" is not expected here.`}},
		{name: "a name that is no identifier", text: "variable \"a b\" {\n default = 1\n}\njob \"j\" {}\n", wantErrors: []string{"Invalid variable name; A name must start with a letter or underscore and may contain only letters, digits, underscores, and dashes."}},
		{name: "optional is no type", text: with("type = object({a = optional(string)})"), wantErrors: []string{"Optional attribute modifier is only for type constraints, not for exact types."}},
		{name: "a quoted type", text: with(`type = "string"`), wantErrors: []string{"A type specification is either a primitive type keyword (bool, number, string) or a complex type constructor call, like list(string)."}},
		{name: "an unknown type", text: with("type = strin"), wantErrors: []string{`The keyword "strin" is not a valid type specification.`}},
		{name: "a default may not call functions", text: with(`default = upper("x")`), wantErrors: []string{"Function calls not allowed; Functions may not be called here."}},
		{name: "a default may not refer", text: with("default = attr.x"), wantErrors: []string{"Variables not allowed; Variables may not be used here."}},
		{name: "a default that does not fit", text: with("type = number\ndefault = \"x\""), wantErrors: []string{"Invalid default value for variable; This default value is not compatible with the variable's type constraint: a number is required."}},
		{name: "a default gives the type", text: with("default = 5"), vars: []string{"x=12"}, at: a, want: `"12"`},
		{name: "text that does not fit the type of the default", text: with("default = 5"), vars: []string{"x=a"}, wantErrors: []string{":0,0-0: Invalid argument value for -var variable; The received arg value for x is not compatible with the variable's type constraint: a number is required."}},
		{name: "without type and default text is text", text: with(""), vars: []string{"x=[1]"}, at: a, want: `"\"[1]\""`},
		{name: "null is a value", text: with("default = null"), at: a, want: `"null"`},
		{name: "declared twice", text: "variable \"x\" {\n default = 1\n}\nvariables {\n x = 1\n}\njob \"j\" {}\n", wantErrors: []string{"Duplicate variable; Duplicate x variable definition found."}},
		{name: "a variables block", text: "variables {\n a = 1\n b = [2]\n}\njob \"j\" {\n meta {\n a = jsonencode(var)\n}\n}\n", at: a, want: `"{\"a\":1,\"b\":[2]}"`},
		{name: "a value for one of a variables block is converted", text: "variables {\n a = 1\n}\njob \"j\" {\n meta {\n a = jsonencode(var.a)\n}\n}\n", vars: []string{"a=7"}, at: a, want: `"7"`},
		{name: "the environment is looked at for declared names only", text: with("default = 1"), environVars: []string{"NOMAD_VAR_y=2", "NOMAD_VAR_x=3", "OTHER=4"}, at: a, want: `"3"`},
		{name: "the environment with a wrong value", text: with("type = number"), environVars: []string{"NOMAD_VAR_x=z"}, wantErrors: []string{":0,0-0: Invalid value for variable; The value for x is not compatible with the variable's type constraint: a number is required."}},
		{name: "an expression from the environment", text: with("type = list(string)"), environVars: []string{"NOMAD_VAR_x=[y]"}, wantErrors: []string{"<value for var.x from env>:1,2-3: Variables not allowed; Variables may not be used here."}},
		{name: "the last -var of a name wins", text: with(""), vars: []string{"x=1", "x=2"}, at: a, want: `"\"2\""`},
		{name: "-var is split at the first equals sign", text: with(""), vars: []string{"x=a=b"}, at: a, want: `"\"a=b\""`},
		{name: "-var for a list", text: with("type = list(number)"), vars: []string{`x=[1,"2"]`}, at: a, want: `"[1,2]"`},
		{name: "-var for a bool", text: with("type = bool"), vars: []string{`x="true"`}, at: a, want: `"true"`},
		{name: "-var with more after the expression", text: with("type = bool"), vars: []string{"x=true true"}, wantErrors: []string{"Extra characters after expression"}},
		{name: "a variable file with a function", text: with(""), files: []string{`x = upper("a")`}, wantErrors: []string{"Function calls not allowed"}},
		{name: "a variable file with a reference", text: with(""), files: []string{"x = attr.y"}, wantErrors: []string{"Variables not allowed"}},
		{name: "a variable file in JSON", text: with("type = list(number)"), files: []string{`{"x":[1]}`}, at: a, want: `"[1]"`},
		{name: "a variable file that declares", text: with(""), files: []string{"variable \"x\" {}\n"}, wantErrors: []string{"Variable declaration in a .var file; A .var file is used to assign values to variables that have already been declared in job files, not to declare new variables. "}},
		{name: "a variable file with a wrong value", text: with("type = number"), files: []string{`x = "z"`}, wantErrors: []string{"Invalid value for variable; The value for x is not compatible with the variable's type constraint: a number is required."}},
		{name: "a variable file with an undeclared name", text: "job \"j\" {}\n", files: []string{"y = 1"}, wantErrors: []string{`<nil>: Undefined variable; A "y" variable was set but was not found in known variables. To declare variable "y", place this block in your job files`}},
		{name: "-var with an undeclared name", text: "job \"j\" {}\n", vars: []string{"zz=1"}, wantErrors: []string{`<nil>: Undefined -var variable; A "zz" variable was passed in the command line but was not found in known variables. To declare variable "zz", place this block in your job file`}},
		{name: "-var with an undeclared name and no strictness", text: "job \"j\" {}\n", vars: []string{"zz=1"}, lax: true, at: "ID", want: `"j"`, wantWarnings: []string{"Undefined -var variable"}},
		{name: "a rule that holds", text: with("default = 3\nvalidation {\n condition = var.x > 2\n error_message = \"too small\"\n}"), at: a, want: `"3"`},
		{name: "a rule that does not", text: with("default = 3\nvalidation {\n condition = var.x > 5\n error_message = \"Zu klein\"\n}"),
			wantErrors: []string{"in.hcl:2,11-12: Invalid value for default variable; Zu klein\n\nThis was checked by the validation rule at in.hcl:4,14-23."}},
		{name: "a rule is for the winning value", text: with("default = 3\nvalidation {\n condition = var.x > 5\n error_message = \"no\"\n}"), vars: []string{"x=9"}, at: a, want: `"9"`},
		{name: "a rule names the command line", text: with("default = 9\nvalidation {\n condition = var.x > 5\n error_message = \"no\"\n}"), vars: []string{"x=1"}, wantErrors: []string{"Invalid value for cmd variable; no"}},
		{name: "a rule names the environment", text: with("default = 9\nvalidation {\n condition = var.x > 5\n error_message = \"no\"\n}"), environVars: []string{"NOMAD_VAR_x=1"}, wantErrors: []string{"Invalid value for env variable; no"}},
		{name: "a rule names the variable file", text: with("default = 9\nvalidation {\n condition = var.x > 5\n error_message = \"no\"\n}"), files: []string{"x = 1"}, wantErrors: []string{"Invalid value for varfile variable; no"}},
		{name: "a rule about another variable", text: with("default = 3\nvalidation {\n condition = var.y > 5\n error_message = \"no\"\n}"), wantErrors: []string{`Invalid reference in variable validation; The condition for variable "x" can only refer to the variable itself, using var.x.`}},
		{name: "a rule about nothing", text: with("default = 3\nvalidation {\n condition = true\n error_message = \"no\"\n}"), wantErrors: []string{`Invalid variable validation condition; The condition for variable "x" must refer to var.x in order to test incoming values.`}},
		{name: "a rule with a loop", text: with("default = [3]\nvalidation {\n condition = length([for v in var.x : v if v > 2]) == 1\n error_message = \"no\"\n}"), at: a, want: `"[3]"`},
		{name: "a rule with a blank message", text: with("default = 3\nvalidation {\n condition = var.x > 2\n error_message = \" \"\n}"), wantErrors: []string{"Invalid validation error message; An empty or blank string is not a valid nor useful error message."}},
		{name: "a rule without a message", text: with("default = 3\nvalidation {\n condition = var.x > 2\n}"), wantErrors: []string{`The argument "error_message" is required, but no definition was found.`}},
		{name: "a rule may not read files", text: with("default = \"x\"\nvalidation {\n condition = fileexists(var.x)\n error_message = \"no\"\n}"), wantErrors: []string{`Call to function "fileexists" failed: filesystem function disabled.`}},
	})
	_, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: []byte("job \"j\" {}\n"), VarFilePaths: []string{"nope.hcl"}})
	if got, want := NomadErrorText(diags), `unable to parse var file: <nil>: Failed to read file; failed to read "nope.hcl": open nope.hcl: no such file or directory`; got != want {
		t.Errorf("missing variable file: got %s, want %s", got, want)
	}
}

// TestLocalsAndDynamicBlocks tests locals and dynamic blocks.
func TestLocalsAndDynamicBlocks(t *testing.T) {
	meta := func(head, a string) string { return head + "job \"j\" {\n meta {\n a = " + a + "\n}\n}\n" }
	runParseCases(t, []parseCase{
		{name: "1.5 locals in any order", text: meta("locals {\n a = local.b\n b = \"${local.c}!\"\n}\nlocals {\n c = upper(\"x\")\n}\n", "local.a"), at: "Meta.a", want: `"X!"`},
		{name: "1.5 a circle of locals", text: meta("locals {\n a = local.b\n b = local.a\n}\n", "1"), wantErrors: []string{`Unsupported attribute; This object does not have an attribute named "`}},
		{name: "1.5 an undefined local", text: meta("locals {\n a = local.b\n}\n", "1"), wantErrors: []string{`Unsupported attribute; This object does not have an attribute named "b".`}},
		{name: "1.5 references survive in locals", text: meta("locals {\n a = attr.x\n}\n", `"<${local.a}>"`), at: "Meta.a", want: `"<${attr.x}>"`},
		{name: "1.5 local as a whole", text: meta("locals {\n a = 1\n b = length(keys(local))\n}\n", "local.b"), at: "Meta.a", want: `"1"`},
		{name: "1.5 a local by index", text: meta("locals {\n a = local[\"b\"]\n b = 2\n}\n", "local.a"), at: "Meta.a", want: `"2"`},
		{name: "1.6 a list", text: "job \"j\" {\n dynamic \"group\" {\n for_each = [\"x\", \"y\"]\n labels = [\"g${group.key}\"]\n content {\n meta {\n v = group.value\n}\n}\n}\n}\n", at: "TaskGroups.1", want: jobWithDynamicGroup(`"g1"`, `{"v":"y"}`)},
		{name: "1.6 a map comes sorted, the iterator renamed", text: "job \"j\" {\n dynamic \"group\" {\n for_each = {b = 1, a = 2}\n iterator = it\n labels = [it.key]\n content {\n meta = { v = it.value }\n}\n}\n}\n", at: "TaskGroups.0", want: jobWithDynamicGroup(`"a"`, `{"v":"2"}`)},
		{name: "1.6 nested, with config and env", text: "job \"j\" {\n dynamic \"group\" {\n for_each = [1]\n labels = [\"g\"]\n content {\n dynamic \"task\" {\n for_each = [2, 3]\n labels = [\"t${task.value}\"]\n content {\n config {\n a = [group.value, task.value]\n b { c = task.key }\n}\n env {\n E = \"${group.value}-${task.value}\"\n}\n}\n}\n}\n}\n}\n",
			at: "TaskGroups.0.Tasks.1.Config", want: `{"a":[1,3],"b":[{"c":1}]}`},
		{name: "1.6 nested env", text: "job \"j\" {\n dynamic \"group\" {\n for_each = [1]\n labels = [\"g\"]\n content {\n dynamic \"task\" {\n for_each = [2]\n labels = [\"t\"]\n content {\n env {\n E = \"${group.value}-${task.value}\"\n}\n}\n}\n}\n}\n}\n", at: envPath, want: `{"E":"1-2"}`},
		{name: "1.6 config as a whole", text: jobWithTaskBody("dynamic \"config\" {\n for_each = [7]\n content {\n a = config.value\n b { c = config.value }\n}\n}"), at: configPath, want: `{"a":7,"b":[{"c":7}]}`},
		{name: "1.6 env as a whole", text: jobWithTaskBody("dynamic \"env\" {\n for_each = [7]\n content {\n A = env.value\n}\n}"), at: envPath, want: `{"A":"7"}`},
		{name: "1.6 ports", text: "job \"j\" {\n group \"g\" {\n network {\n dynamic \"port\" {\n for_each = [80, 0]\n labels = [\"p${port.key}\"]\n content {\n static = port.value\n}\n}\n}\n}\n}\n", at: "TaskGroups.0.Networks.0.ReservedPorts.0.Label", want: `"p0"`},
		{name: "1.6 for_each of a reference", text: jobWithTaskBody("dynamic \"template\" {\n for_each = attr.x\n content {}\n}"), wantErrors: []string{"Invalid dynamic for_each value; Cannot use a string value in for_each. An iterable collection is required."}},
		{name: "1.6 a block that is not known", text: jobWithTaskBody("dynamic \"nope\" {\n for_each = []\n content {}\n}"), wantErrors: []string{`Blocks of type "nope" are not expected here.`}},
		{name: "1.6 dynamic in HCL JSON", text: `{"job":{"j":{"dynamic":{"group":{"for_each":["x"],"labels":["${group.value}"],"content":{"meta":{"v":"${group.value}!"}}}}}}}`, at: "TaskGroups.0", want: jobWithDynamicGroup(`"x"`, `{"v":"x!"}`)},
		{name: "1.7 length refuses text", text: meta("", `length("abc")`), wantErrors: []string{`Call to function "length" failed: collection must be a list, a map or a tuple.`}},
		{name: "1.7 strrev", text: meta("", `"${strrev("abc")}${reverse("abc")}${strlen("abc")}"`), at: "Meta.a", want: `"cbacba3"`},
		{name: "1.7 an unknown function", text: meta("", "nope(1)"), wantErrors: []string{`Call to unknown function; There is no function named "nope".`}},
		{name: "1.7 try, can and convert", text: meta("", `"${try(local.nope, "t")} ${can(local.nope)} ${convert("5", number) + 1}"`), at: "Meta.a", want: `"t false 6"`},
	})
}

func jobWithDynamicGroup(name, meta string) string {
	return `{"Name":` + name + `,"Count":null,"Constraints":null,"Affinities":null,"Tasks":null,"Spreads":null,"Volumes":null,"RestartPolicy":null,"Disconnect":null,"ReschedulePolicy":null,"EphemeralDisk":null,"Update":null,"Migrate":null,"Networks":null,"Meta":` + meta +
		`,"Services":null,"ShutdownDelay":null,"MaxRunDuration":null,"StopAfterClientDisconnect":null,"MaxClientDisconnect":null,"Scaling":null,"Consul":null,"PreventRescheduleOnLost":null}`
}

// TestRuntimeReferencesArePreserved covers the references that the agent resolves and the parser
// keeps.
func TestRuntimeReferencesArePreserved(t *testing.T) {
	value := func(name, written, want string) parseCase {
		return parseCase{name: "1.9 " + name, text: jobWithConfig("v = " + written), at: configPath + ".v", want: want}
	}
	fails := func(name, written, want string) parseCase {
		return parseCase{name: "1.9 " + name, text: jobWithConfig("v = " + written), wantErrors: []string{want}}
	}
	runParseCases(t, []parseCase{
		value("quoted", `"${attr.kernel.name}"`, `"${attr.kernel.name}"`),
		value("bare", `attr.kernel.name`, `"${attr.kernel.name}"`),
		value("spaces are kept", `"${ attr.kernel.name }"`, `"${ attr.kernel.name }"`),
		value("in text", `"a-${node.unique.id}-b"`, `"a-${node.unique.id}-b"`),
		value("an index", `"${env["X"]}"`, `"${env[\"X\"]}"`),
		value("mixed indexes", `"${x.0[3]["F"].5}"`, `"${x.0[3][\"F\"].5}"`),
		value("dashes", `"${attr.network.dev-us-east1.external-ip.0}"`, `"${attr.network.dev-us-east1.external-ip.0}"`),
		value("escaped", `"$${attr.foo}"`, `"${attr.foo}"`),
		value("a function", `"${upper(attr.kernel.name)}"`, `"${ATTR.KERNEL.NAME}"`),
		value("a comparison", `"${attr.kernel.name == "linux" ? "a" : "b"}"`, `"b"`),
		fails("arithmetic", `"${NOMAD_PORT_http + 1}"`, "Invalid operand; Unsuitable value for left operand: a number is required."),
		fails("a splat", `"${attr.*.x}"`, "Unsupported attribute; Can't access attributes on a primitive-typed value (string)."),
		fails("var is reserved", `var.nope`, `Unsupported attribute; This object does not have an attribute named "nope".`),
		fails("local is reserved", `local.nope`, `Unsupported attribute; This object does not have an attribute named "nope".`),
		value("var alone", `[var]`, `[{}]`),
		value("a brace after it (Nomad doubles it)", `"${attr.foo}}"`, `"${attr.foo}}"`),
		value("braces and blanks after it", `"x ${attr.foo} } y"`, `"x ${attr.foo} } y"`),
		{name: "1.9 in env", text: jobWithTaskBody("env {\n A = attr.x\n B = \"<${meta.y}>\"\n}"), at: envPath, want: `{"A":"${attr.x}","B":"<${meta.y}>"}`},
		{name: "1.9 in HCL JSON", text: `{"job":{"j":{"meta":{"a":"${ attr.x } $${y} ${upper(meta.z)}"}}}}`, at: "Meta.a", want: `"${ attr.x } ${y} ${META.Z}"`},
		value("a name that a loop binds", `[for x in [1] : "${x}${y}"]`, `["1${y}"]`),
		value("a name after the loop", `["${[for x in [1] : x][0]}", x.y]`, `[1,"${x.y}"]`),
		value("a path and a longer one", `["${attr.a}", "${attr.a.b}"]`, `["${attr.a}","${attr.a.b}"]`),
	})
}

// TestDeviationsFromHCL covers deviations of the dialect from HCL.
func TestDeviationsFromHCL(t *testing.T) {
	value := func(name, written, want string) parseCase {
		return parseCase{name: "1.9.1 " + name, text: "variable \"m\" {\n type = map(map(string))\n default = {\n b = {\n k = \"2\"\n}\n a = {\n k = \"1\"\n}\n}\n}\nlocals {\n o = {\n a = 1\n}\n k = \"x\"\n}\n" + jobWithConfig("v = "+written), at: configPath + ".v", want: want}
	}
	fails := func(name, written, want string) parseCase {
		e := value(name, written, "")
		e.at, e.wantErrors = "", []string{want}
		return e
	}
	runParseCases(t, []parseCase{
		value("an object literal", `{ a = 1 }`, `[{"a":1}]`),
		value("in parentheses", `({ a = 1 })`, `{"a":1}`),
		value("in a conditional", `true ? { a = 1 } : { a = 2 }`, `{"a":1}`),
		value("from a local", `local.o`, `{"a":1}`),
		value("from a for", `{ for k in ["a"] : k => 1 }`, `{"a":1}`),
		value("from a function", `merge({ a = 1 }, {})`, `{"a":1}`),
		value("a map of maps loses its keys", `var.m`, `[{"k":"1"},{"k":"2"}]`),
		value("tabs are dropped", "\"${\tattr.x\t}\"", `"${attr.x}"`),
		value("line ends are dropped", "\"${\nattr.x\n}\"", `"${attr.x}"`),
		value("a comment eats the blank before it", `"${ attr.x /* c */}"`, `"${ attr.x}"`),
		value("an index survives", `"${attr[0]}"`, `"${attr[0]}"`),
		value("a splat makes a list", `attr[*]`, `["${attr}"]`),
		fails("an index that is computed", `env[local.k]`, "Invalid index"),
		fails("a path after parentheses", `(attr).x`, "Unsupported attribute"),
		fails("length of an object literal", `length({ a = 1 })`, `Call to function "length" failed: collection must be a list, a map or a tuple.`),
		{name: "1.9.1 a division by zero in env", text: jobWithTaskBody("env {\n A = 1/0\n}"), at: envPath, want: `{"A":"+Inf"}`},
		{name: "1.9.1 a division by zero in meta", text: jobWithTaskBody("meta = {\n A = 1/0\n}"), at: taskPath + ".Meta", want: `{"A":"+Inf"}`},
		{name: "1.9.1 extra claims are a list", text: jobWithTaskBody("identity {\n name = \"a\"\n extra_claims = [\"x\"]\n}"), at: taskPath + ".Identities.0.ExtraClaims", want: `["x"]`},
		{name: "1.9.1 a change script without a command", text: jobWithTaskBody("template {\n change_script {}\n}"), at: taskPath + ".Templates.0.ChangeScript.Args", want: `[]`},
		{name: "1.9.1 the keys of a JSON config are no templates", text: `{"job":{"j":{"task":{"t":{"config":{"${attr.x}":"${attr.y}"}}}}}}`, at: configPath, want: `{"${attr.x}":"${attr.y}"}`},
		{name: "1.9.1 a comment in JSON", text: `{"job":{"j":{"//":"c","task":{"t":{"//":"c","config":{"//":"c","a":1}}}}}}`, at: configPath, want: `{"a":1}`},
		{name: "1.9.1 a comment in JSON where a label is expected", text: `{"job":{"//":{}}}`, at: "ID", want: `"//"`},
		{name: "1.9.1 a follow-up diagnostic", text: jobWithConfig("a = local.nope"), wantErrors: []string{", and 1 other diagnostic(s)"}},
		{name: "1.9.1 a flush heredoc with directives that are indented", text: jobWithConfig("a = <<-EOF\n    %{ if true }\n    x\n    %{ endif }\n    EOF"), at: configPath + ".a", want: `"\nx\n\n"`},
		{name: "1.9.1 a flush heredoc with directives at the margin", text: jobWithConfig("a = <<-EOF\n%{ if true }\n    x\n%{ endif }\n    EOF"), at: configPath + ".a", want: `"\n    x\n\n"`},
	})

	file, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(jobWithConfig("a = 1/0"))})
	if diags.HasErrors() {
		t.Fatal(NomadErrorText(diags))
	}
	if err := EncodeJobRunOutput(&bytes.Buffer{}, file.Job); err == nil || !strings.Contains(err.Error(), "+Inf") {
		t.Errorf("an infinite number in config: got %v, want an error of the output", err)
	}
}

// TestBlockForms covers blocks and attributes that have more than one form.
func TestBlockForms(t *testing.T) {
	runParseCases(t, []parseCase{
		{name: "1.10 attribute form", text: jobWithTaskBody(`env = { "a.b" = 1, c = true, d = 1.50, e = 1e3 }`), at: envPath, want: `{"a.b":"1","c":"true","d":"1.5","e":"1000"}`},
		{name: "1.10 block form", text: jobWithTaskBody("env {\n a = 1\n c = true\n d = 1.50\n e = 1e3\n}"), at: envPath, want: `{"a":"1","c":"true","d":"1.5","e":"1000"}`},
		{name: "1.10 meta of a job and a group", text: "job \"j\" {\n meta = { \"a.b\" = 1 }\n group \"g\" {\n meta = { \"c.d\" = 2 }\n}\n}\n", at: "TaskGroups.0.Meta", want: `{"c.d":"2"}`},
		{name: "1.10 both forms", text: jobWithTaskBody("env = { A = 1 }\nenv {\n B = 1\n}"), wantErrors: []string{"Duplicate env block; env may not be defined more than once. Another definition is defined at in.hcl:5,1-16"}},
		{name: "1.10 two blocks", text: jobWithTaskBody("env {\n A = 1\n}\nenv {\n B = 1\n}"), wantErrors: []string{"Duplicate env block; Only one env block is allowed. Another was defined at in.hcl:5,1-4."}},
		{name: "1.10 null in a block", text: jobWithTaskBody("env {\n A = null\n}"), wantErrors: []string{"Unsuitable value type; Unsuitable value: null value is not allowed"}},
		{name: "1.10 null in an attribute", text: jobWithTaskBody("env = { A = null }"), wantErrors: []string{"Unsuitable value type; Unsuitable value: null value is not allowed"}},
		{name: "1.10 a list in a block", text: jobWithTaskBody("env {\n A = [1]\n}"), wantErrors: []string{"Unsuitable value type; Unsuitable value: string required, but have tuple"}},
		{name: "1.10 a list in an attribute", text: jobWithTaskBody("env = { A = [1] }"), wantErrors: []string{"Unsuitable value type; Unsuitable value: string required, but have tuple"}},
		{name: "1.10 an attribute that is a list", text: jobWithTaskBody("env = [1]"), wantErrors: []string{"Unsuitable value type; Unsuitable value: map of string required"}},
		{name: "1.10 an attribute that is null", text: jobWithTaskBody("env = null"), at: envPath, want: `null`},
		{name: "1.10 an empty block", text: jobWithTaskBody("env {}"), at: envPath, want: `{}`},
		{name: "1.10 config has no attribute form", text: jobWithTaskBody("config = {}"), wantErrors: []string{`Unsupported argument; An argument named "config" is not expected here. Did you mean to define a block of type "config"?`}},
		{name: "1.10 no env in a group", text: "job \"j\" {\n group \"g\" {\n env {}\n}\n}\n", wantErrors: []string{`Blocks of type "env" are not expected here.`}},
		{name: "1.10 meta of a service has no attribute form", text: jobWithTaskBody("service {\n meta = {}\n}"), wantErrors: []string{"Did you mean to define a block of type \"meta\"?"}},
		{name: "2 no restart in a job", text: "job \"j\" {\n restart {}\n}\n", wantErrors: []string{`Blocks of type "restart" are not expected here.`}},
		{name: "2 null for a pointer is absent", text: "job \"j\" {\n type = null\n datacenters = null\n namespace = null\n group \"g\" {\n count = null\n}\n}\n", at: "Type", want: `null`},
		{name: "2 null for a string", text: jobWithTaskBody("user = null"), wantErrors: []string{"Unsuitable value type; Unsuitable value: null value is not allowed"}},
		{name: "2 null for a bool", text: jobWithTaskBody("leader = null"), wantErrors: []string{"Unsuitable value type; Unsuitable value: null value is not allowed"}},
		{name: "2 null for a duration", text: jobWithTaskBody("kill_timeout = null"), wantErrors: []string{"Unsuitable value; Unsuitable duration value: nil"}},
		{name: "2 a block twice", text: jobWithTaskBody("lifecycle {\n hook = \"a\"\n}\nlifecycle {\n hook = \"b\"\n}"), wantErrors: []string{"in.hcl:8,1-10: Duplicate lifecycle block; Only one lifecycle block is allowed. Another was defined at in.hcl:5,1-10."}},
		{name: "2.2 a volume twice: the last wins", text: "job \"j\" {\n group \"g\" {\n volume \"v\" {\n source = \"a\"\n}\n volume \"v\" {\n source = \"b\"\n}\n}\n}\n", at: "TaskGroups.0.Volumes.v.Source", want: `"b"`},
		{name: "2.3 an action without a command", text: jobWithTaskBody("action \"a\" {}"), wantErrors: []string{`Missing required argument; The argument "command" is required, but no definition was found.`}},
		{name: "2.17 header values are lists", text: jobWithTaskBody("service {\n check {\n header {\n A = \"x\"\n}\n}\n}"), wantErrors: []string{"list of string required, but have string"}},
		{name: "2.17 headers", text: jobWithTaskBody("service {\n check {\n header {\n A = [\"x\", 1]\n}\n}\n}"), at: taskPath + ".Services.0.Checks.0.Header", want: `{"A":["x","1"]}`},
		{name: "2.23 scaling without max", text: "job \"j\" {\n group \"g\" {\n scaling {}\n}\n}\n", wantErrors: []string{`Missing required argument; The argument "max" is required, but no definition was found.`}},
		{name: "2.23 scaling of a wrong type", text: "job \"j\" {\n group \"g\" {\n scaling {\n max = 1\n type = \"x\"\n}\n}\n}\n", wantErrors: []string{`Invalid group scaling type; task group scaling policy had invalid type: "x"`}},
		{name: "2.23 scaling of a task", text: jobWithTaskBody("scaling \"CPU\" {\n max = 1\n policy {\n a = 1\n}\n}"), at: taskPath + ".ScalingPolicies.0.Type", want: `"vertical_cpu"`},
		{name: "2.23 scaling of a task by another name", text: jobWithTaskBody("scaling \"disk\" {\n max = 1\n}"), wantErrors: []string{`Invalid scaling policy name; scaling policy name must be "cpu" or "mem"`}},
		{name: "2.23 scaling of a task twice", text: jobWithTaskBody("scaling \"mem\" {\n max = 1\n}\nscaling \"mem\" {\n max = 1\n}"), wantErrors: []string{`Duplicate scaling "mem" block; `}},
		{name: "2.23 scaling of a task with another type", text: jobWithTaskBody("scaling \"mem\" {\n max = 1\n type = \"foo\"\n}"), wantErrors: []string{`Invalid scaling policy type; Invalid policy type, expected "foo" but found "vertical_mem"`}},
		{name: "5 a lifecycle without a hook", text: jobWithTaskBody("lifecycle {}"), wantErrors: []string{`Missing required argument; The argument "hook" is required, but no definition was found.`}},
	})
}

// TestValuesChangedByParser covers the values that the parser changes.
func TestValuesChangedByParser(t *testing.T) {
	network := func(ports string) string { return "job \"j\" {\n group \"g\" {\n network {\n" + ports + "\n}\n}\n}\n" }
	const net = "TaskGroups.0.Networks.0"
	runParseCases(t, []parseCase{
		{name: "the id of a job", text: "job \"l\" {\n id = \"i\"\n}\n", at: "ID", want: `"i"`},
		{name: "the name of a job", text: "job \"l\" {\n id = \"i\"\n}\n", at: "Name", want: `"l"`},
		{name: "cron", text: "job \"j\" {\n periodic {\n cron = \"x\"\n}\n}\n", at: "Periodic.SpecType", want: `"cron"`},
		{name: "crons", text: "job \"j\" {\n periodic {\n crons = [\"x\"]\n}\n}\n", at: "Periodic.SpecType", want: `"cron"`},
		{name: "no cron", text: "job \"j\" {\n periodic {}\n}\n", at: "Periodic.SpecType", want: `null`},
		{name: "vault of the job", text: "job \"j\" {\n vault {\n role = \"r\"\n}\n task \"t\" {}\n}\n", at: taskPath + ".Vault.Role", want: `"r"`},
		{name: "vault of the group", text: "job \"j\" {\n vault {\n role = \"r\"\n}\n group \"g\" {\n vault {\n role = \"s\"\n}\n task \"t\" {}\n}\n}\n", at: taskPath + ".Vault.Role", want: `"s"`},
		{name: "vault of the task", text: "job \"j\" {\n group \"g\" {\n vault {\n role = \"s\"\n}\n task \"t\" {\n vault {}\n}\n}\n}\n", at: taskPath + ".Vault", want: `{"Policies":null,"Role":"","Namespace":null,"Cluster":"","Env":true,"DisableFile":false,"ChangeMode":"restart","ChangeSignal":null,"AllowTokenExpiration":null}`},
		{name: "secrets of the job come after the task's", text: "job \"j\" {\n secret \"a\" {\n config {\n x = 1\n}\n}\n group \"g\" {\n task \"t\" {\n secret \"b\" {}\n}\n}\n}\n", at: taskPath + ".Secrets.1", want: `{"Name":"a","Provider":"","Path":"","Config":{"x":1},"Env":null}`},
		{name: "secrets of the group (Nomad doubles the task's)", text: "job \"j\" {\n group \"g\" {\n secret \"a\" {}\n task \"t\" {\n secret \"b\" {}\n}\n}\n}\n", at: taskPath + ".Secrets.1.Name", want: `"a"`},
		{name: "a static port is reserved", text: network("port \"a\" {\n static = 80\n}"), at: net + ".ReservedPorts.0.Value", want: `80`},
		{name: "a port that is static and not", text: network("port \"a\" {\n static = 0\n}\nport \"b\" {\n static = -1\n}"), at: net + ".DynamicPorts.1.Label", want: `"b"`},
		{name: "reserved_ports alone", text: network("reserved_ports \"a\" {\n static = 80\n}"), at: net + ".ReservedPorts.0.Value", want: `80`},
		{name: "ports of resources", text: jobWithTaskBody("resources {\n network {\n port \"a\" {\n static = 80\n}\n}\n}"), at: taskPath + ".Resources.Networks.0.ReservedPorts.0.Value", want: `80`},
		{name: "a template", text: jobWithTaskBody("template {}"), at: taskPath + ".Templates.0", want: `{"SourcePath":null,"DestPath":null,"EmbeddedTmpl":null,"ChangeMode":"restart","ChangeScript":null,"ChangeSignal":null,"Once":null,"Splay":5000000000,"Perms":"0644","Uid":null,"Gid":null,"LeftDelim":null,"RightDelim":null,"Envvars":null,"VaultGrace":null,"Wait":null,"ErrMissingKey":false}`},
		{name: "a change script", text: jobWithTaskBody("template {\n change_script {\n command = \"c\"\n}\n}"), at: taskPath + ".Templates.0.ChangeScript", want: `{"Command":"c","Args":[],"Timeout":5000000000,"FailOnError":false,"RunOnFirstRender":false}`},
		{name: "the perms of a template may be a number", text: jobWithTaskBody("template {\n perms = 755\n}"), at: taskPath + ".Templates.0.Perms", want: `"755"`},
		{name: "one bound of a wait", text: jobWithTaskBody("template {\n wait {\n min = \"1s\"\n}\n}"), at: taskPath + ".Templates.0.Wait", want: `{"Min":1000000000,"Max":null}`},
		{name: "an identity without a name", text: jobWithTaskBody("identity {\n env = true\n}"), at: taskPath + ".Identity.Env", want: `true`},
		{name: "the first default identity moves, the rest stay", text: jobWithTaskBody("identity {\n name = \"a\"\n}\nidentity {\n name = \"default\"\n file = true\n}\nidentity {}"), at: taskPath + ".Identities.1.Name", want: `""`},
		{name: "shorthands of a constraint", text: "job \"j\" {\n constraint {\n attribute = \"a\"\n version = \">= 1\"\n}\n}\n", at: "Constraints.0", want: `{"LTarget":"a","RTarget":">= 1","Operand":"version"}`},
		{name: "distinct_hosts", text: "job \"j\" {\n constraint {\n distinct_hosts = false\n}\n}\n", at: "Constraints.0", want: `{"LTarget":"","RTarget":"false","Operand":"distinct_hosts"}`},
		{name: "distinct_property", text: "job \"j\" {\n constraint {\n distinct_property = \"${meta.rack}\"\n value = 2\n}\n}\n", at: "Constraints.0", want: `{"LTarget":"${meta.rack}","RTarget":"2","Operand":"distinct_property"}`},
		{name: "set_contains_all is the operator of a constraint", text: "job \"j\" {\n constraint {\n attribute = \"a\"\n set_contains_all = \"x,y\"\n}\n}\n", at: "Constraints.0", want: `{"LTarget":"a","RTarget":"x,y","Operand":"set_contains_all"}`},
		{name: "is_set is the operator of a constraint", text: "job \"j\" {\n constraint {\n attribute = \"${attr.x}\"\n is_set = true\n}\n}\n", at: "Constraints.0", want: `{"LTarget":"${attr.x}","RTarget":"","Operand":"is_set"}`},
		{name: "is_set = false means is_not_set", text: "job \"j\" {\n constraint {\n attribute = \"${attr.x}\"\n is_set = false\n}\n}\n", at: "Constraints.0", want: `{"LTarget":"${attr.x}","RTarget":"","Operand":"is_not_set"}`},
		{name: "is_not_set can name the attribute", text: "job \"j\" {\n constraint {\n is_not_set = \"${attr.x}\"\n}\n}\n", at: "Constraints.0", want: `{"LTarget":"${attr.x}","RTarget":"","Operand":"is_not_set"}`},
		{name: "a value of null in a constraint is none", text: "job \"j\" {\n constraint {\n attribute = \"${attr.x}\"\n operator = \"is_set\"\n value = null\n}\n}\n", at: "Constraints.0", want: `{"LTarget":"${attr.x}","RTarget":"","Operand":"is_set"}`},
		{name: "an operator of null in an affinity is the default", text: "job \"j\" {\n affinity {\n attribute = \"a\"\n operator = null\n value = null\n}\n}\n", at: "Affinities.0", want: `{"LTarget":"a","RTarget":"","Operand":"=","Weight":null}`},
		{name: "scaling of a group without enabled leaves it open", text: "job \"j\" {\n group \"g\" {\n scaling {\n max = 3\n}\n}\n}\n", at: "TaskGroups.0.Scaling.Enabled", want: `null`},
		{name: "scaling of a task without enabled leaves it open", text: jobWithTaskBody("scaling \"cpu\" {\n max = 3\n}"), at: taskPath + ".ScalingPolicies.0.Enabled", want: `null`},
		{name: "a shorthand of an affinity", text: "job \"j\" {\n affinity {\n attribute = \"a\"\n set_contains_any = \"x\"\n weight = -50\n}\n}\n", at: "Affinities.0", want: `{"LTarget":"a","RTarget":"x","Operand":"set_contains_any","Weight":-50}`},
	})
}

// TestScalars covers the conversions of scalar values.
func TestScalars(t *testing.T) {
	runParseCases(t, []parseCase{
		{name: "a duration of parts", text: jobWithTaskBody(`kill_timeout = "1h2m3.5s"`), at: taskPath + ".KillTimeout", want: `3723500000000`},
		{name: "a negative duration", text: jobWithTaskBody(`kill_timeout = "-5us"`), at: taskPath + ".KillTimeout", want: `-5000`},
		{name: "a duration without a unit", text: jobWithTaskBody(`kill_timeout = "10"`), wantErrors: []string{`time: missing unit in duration "10"`}},
		{name: "a duration that is not whole", text: jobWithTaskBody("kill_timeout = 1.5"), wantErrors: []string{"value must be a whole number, "}},
		{name: "a duration beyond all", text: jobWithTaskBody("kill_timeout = 1e300"), wantErrors: []string{"value must be a whole number, "}},
		{name: "a duration that is a bool", text: jobWithTaskBody("kill_timeout = true"), wantErrors: []string{"Unsuitable value: expected a string but found bool"}},
		{name: "a pointer to a duration", text: "job \"j\" {\n group \"g\" {\n shutdown_delay = \"1s\"\n}\n}\n", at: "TaskGroups.0.ShutdownDelay", want: `1000000000`},
		{name: "an int from text", text: "job \"j\" {\n group \"g\" {\n count = \"3\"\n}\n}\n", at: "TaskGroups.0.Count", want: `3`},
		{name: "an int that is not whole", text: "job \"j\" {\n group \"g\" {\n count = 1.5\n}\n}\n", wantErrors: []string{"Unsuitable value type; Unsuitable value: value must be a whole number, between -9223372036854775808 and 9223372036854775807"}},
		{name: "eight bits", text: "job \"j\" {\n spread {\n target \"x\" {\n percent = 256\n}\n}\n}\n", wantErrors: []string{"between 0 and 255 inclusive"}},
		{name: "eight bits with a sign", text: "job \"j\" {\n spread {\n weight = 128\n}\n}\n", wantErrors: []string{"between -128 and 127"}},
		{name: "a bool from text", text: jobWithTaskBody(`leader = "1"`), at: taskPath + ".Leader", want: `true`},
		{name: "a string from a bool", text: jobWithTaskBody("user = true"), at: taskPath + ".User", want: `"true"`},
		{name: "a list from a string", text: "job \"j\" {\n datacenters = \"dc1\"\n}\n", wantErrors: []string{"list of string required, but have string"}},
		{name: "a list of numbers", text: "job \"j\" {\n datacenters = [1, \"b\"]\n}\n", at: "Datacenters", want: `["1","b"]`},
	})
}

// TestSchemalessBlocks covers bodies without a schema, such as config.
func TestSchemalessBlocks(t *testing.T) {
	value := func(written, want string) parseCase {
		return parseCase{name: "8.1 " + strings.ReplaceAll(written, "\n", " "), text: jobWithConfig(written), at: configPath, want: want}
	}
	runParseCases(t, []parseCase{
		value("", `{}`),
		value("a = 1\nb = 1.0\nc = 1e3", `{"a":1,"b":1,"c":1000}`),
		value("a = 9223372036854775807", `{"a":9223372036854775807}`),
		value("a = 18446744073709551616", `{"a":18446744073709552000}`),
		value("a = 1.5\nb = true\nc = \"s\"", `{"a":1.5,"b":true,"c":"s"}`),
		value("a = { b = null }", `{"a":[{"b":null}]}`),
		value("blk {\n a = null\n}", `{"blk":[{"a":null}]}`),
		value("a = [1, \"b\"]\nb = []", `{"a":[1,"b"],"b":[]}`),
		value("m = {}", `{"m":[{}]}`),
		value("a = [{ b = { c = 1 } }]", `{"a":[{"b":{"c":1}}]}`),
		value("m = { n = { k = 1 } }", `{"m":[{"n":{"k":1}}]}`),
		value("blk {\n x = 1\n}", `{"blk":[{"x":1}]}`),
		value("blk {}", `{"blk":[{}]}`),
		value("blk {\n x = 1\n}\nblk {\n x = 2\n}", `{"blk":[{"x":1},{"x":2}]}`),
		value("blk \"a\" {\n x = 1\n}\nblk \"b\" {\n x = 2\n}", `{"blk":[{"a":[{"x":1}]},{"b":[{"x":2}]}]}`),
		value("blk {\n m = { a = 1 }\n in {\n y = 2\n}\n}", `{"blk":[{"m":[{"a":1}],"in":[{"y":2}]}]}`),
		{name: "8.1 two blocks", text: jobWithTaskBody("config {}\nconfig {}"), wantErrors: []string{"Duplicate config block; Only one config block is allowed. Another was defined at in.hcl:5,1-7."}},
		{name: "8.1 null in JSON", text: `{"job":{"j":{"task":{"t":{"config":{"a":null,"b":[null],"c":{"d":null}}}}}}}`, at: configPath, want: `{"b":[null],"c":{"d":null}}`},
	})
}

// TestConsequentErrorsAreOmitted compares complete texts: an error that only follows from another
// error is not reported.
func TestConsequentErrorsAreOmitted(t *testing.T) {
	declared := "variable \"x\" {\n type = list(string)\n}\njob \"j\" {}\n"
	for _, e := range []parseCase{
		{name: "a value of -var that is no expression", text: declared, vars: []string{"x=["},
			want: "<value for var.x from arguments>:1,2-2: Missing expression; Expected the start of an expression, but found the end of the file."},
		{name: "a value of -var of another type", text: declared, vars: []string{"x=1"},
			want: `<value for var.x from arguments>:1,1-2: Invalid argument value for -var variable; The received arg value for x is not compatible with the variable's type constraint: list of string required, but have number.`},
		{name: "a value of the environment of another type", text: declared, environVars: []string{"NOMAD_VAR_x=1"},
			want: `<value for var.x from env>:1,1-2: Invalid value for variable; The value for x is not compatible with the variable's type constraint: list of string required, but have number.`},
		{name: "a value with a name in it", text: declared, vars: []string{"x=[a]"},
			want: `<value for var.x from arguments>:1,2-3: Variables not allowed; Variables may not be used here.`},
		{name: "another variable without a value", text: "variable \"y\" {}\n" + declared, vars: []string{"x=1"},
			want: `<value for var.x from arguments>:1,1-2: Invalid argument value for -var variable; The received arg value for x is not compatible with the variable's type constraint: list of string required, but have number.
in.hcl:1,1-13: Unset variable "y"; A used variable must be set or have a default value; see https://developer.hashicorp.com/nomad/docs/reference/hcl2/variables  for details.`},
		{name: "a value that a stronger one replaces", text: declared, environVars: []string{"NOMAD_VAR_x=1"}, vars: []string{"x=[]"},
			want: `<value for var.x from env>:1,1-2: Invalid value for variable; The value for x is not compatible with the variable's type constraint: list of string required, but have number.`},
		{name: "no label", text: "job {}\n", want: "in.hcl:1,5-6: Missing name for job; All job blocks must have 1 labels (name)."},
		{name: "two labels", text: "job \"a\" \"b\" {}\n", want: "in.hcl:1,9-12: Extraneous label for job; Only 1 labels (name) are expected for job blocks."},
		{name: "no label in JSON", text: `{"job": {}}`, want: "in.hcl:1,9-10: Missing block label; At least one object property is required, whose name represents the job block's name."},
		{name: "another block without a label", text: "variable {}\n", want: `in.hcl:1,10-11: Missing name for variable; All variable blocks must have 1 labels (name).
in.hcl:1,1-1: Missing job block; A job block is required`},
	} {
		t.Run(e.name, func(t *testing.T) {
			_, diags := e.parse(t)
			if got := NomadErrorText(diags); got != e.want {
				t.Errorf("got\n%s\nwant\n%s", got, e.want)
			}
		})
	}
}

// TestDiagnosticText covers the texts of diagnostics.
func TestDiagnosticText(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"errors of a body are lines", "job \"j\" {\n aaaa = 1\n bbbb = 2\n}\n", "in.hcl:2,2-6: Unsupported argument; An argument named \"aaaa\" is not expected here.\nin.hcl:3,2-6: Unsupported argument; An argument named \"bbbb\" is not expected here."},
		{"of syntax errors the first is printed", "job \"j\" {\n a = 1\n a = 2\n a = 3\n}\n", "in.hcl:3,2-3: Attribute redefined; The argument \"a\" was already set at in.hcl:2,2-3. Each argument may be set only once., and 1 other diagnostic(s)"},
		{"of errors in config too", jobWithConfig("a = local.x\nb = local.y"), `in.hcl:6,10-12: Unsupported attribute; This object does not have an attribute named "x"., and 3 other diagnostic(s)`},
	}
	for _, test := range tests {
		_, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(test.text)})
		if got := NomadErrorText(diags); got != test.want {
			t.Errorf("%s:\ngot  %s\nwant %s", test.name, got, test.want)
		}
	}
}
