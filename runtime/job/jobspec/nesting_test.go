package jobspec

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/job/fileaccess"
)

const mebibyte = 1 << 20

// repeatToMaxText repeats a piece of text up to about a mebibyte.
func repeatToMaxText(piece string) string { return strings.Repeat(piece, mebibyte/len(piece)) }

// TestDeepTextIsRefused parses texts that would overflow the stack of the parser. The target is a
// second; the test only checks that the error has a position, and that memory stays within a
// limit.
func TestDeepTextIsRefused(t *testing.T) {
	job := func(meta string) string { return "job \"j\" {\n  meta {\n    a = " + meta }
	tests := []struct {
		name, text string
		vars       []string
		file       string // name of the file in the diagnostic
	}{
		{"brackets", job(repeatToMaxText("[")), nil, "in.hcl"},
		{"parentheses", job(repeatToMaxText("(")), nil, "in.hcl"},
		{"braces", job(repeatToMaxText("{a=")), nil, "in.hcl"},
		{"function calls", job(repeatToMaxText("upper(")), nil, "in.hcl"},
		{"indexes", job("a" + repeatToMaxText("[a")), nil, "in.hcl"},
		{"negations", job(repeatToMaxText("!")), nil, "in.hcl"},
		{"negations over lines", job("(" + repeatToMaxText("!\n")), nil, "in.hcl"},
		{"minus signs", job(repeatToMaxText("-")), nil, "in.hcl"},
		{"minus signs between parentheses", job(repeatToMaxText("-(")), nil, "in.hcl"},
		{"templates", job(repeatToMaxText(`"${`)), nil, "in.hcl"},
		{"nested for expressions", job(repeatToMaxText("[for a in ")), nil, "in.hcl"},
		{"conditionals", job(repeatToMaxText("a ? a : ")), nil, "in.hcl"},
		{"conditionals in the middle", job(repeatToMaxText("a ? ")), nil, "in.hcl"},
		{"conditionals over the lines of a for", job("{for k, v in a : k => " + repeatToMaxText("a ? a :\n")), nil, "in.hcl"},
		{"splats", job("a" + repeatToMaxText("[*]")), nil, "in.hcl"},
		{"additions", job(repeatToMaxText("1+") + "1"), nil, "in.hcl"},
		{"indexes in a row", job("a" + repeatToMaxText("[b]")), nil, "in.hcl"},
		{"scopes of a function", job(repeatToMaxText("a::")), nil, "in.hcl"},
		{"template directives", job(`"` + repeatToMaxText("%{if a}")), nil, "in.hcl"},
		{"template loops", job(`"` + repeatToMaxText("%{for a in b}")), nil, "in.hcl"},
		{"heredocs", job(repeatToMaxText("<<A\n${")), nil, "in.hcl"},
		{"blocks", repeatToMaxText("a {\n"), nil, "in.hcl"},
		{"late brackets", job(`"` + strings.Repeat("x", 128<<10) + `"` + "\nb = " + strings.Repeat("[", 128<<10)), nil, "in.hcl"},
		{"mismatched brackets", job(repeatToMaxText("[}")), nil, "in.hcl"},
		{"JSON arrays", `{"job":` + repeatToMaxText("["), nil, "in.hcl"},
		{"JSON objects", `{"job":` + repeatToMaxText(`{"a":`), nil, "in.hcl"},
		{"a template in JSON", `{"job":{"j":{"meta":{"a":"` + repeatToMaxText("${(") + `"}}}}`, nil, "in.hcl"},
		{"negations in a template in JSON", `{"job":{"j":{"meta":{"a":"${` + repeatToMaxText("!") + `}"}}}}`, nil, "in.hcl"},
		{"a variable of the command line", "variable \"x\" {\n  type = list(string)\n}\njob \"j\" {}\n", []string{"x=" + repeatToMaxText("[")}, "<value for var.x from arguments>"},
		{"additions on the command line", "variable \"x\" {\n  type = list(string)\n}\njob \"j\" {}\n", []string{"x=" + repeatToMaxText("1+") + "1"}, "<value for var.x from arguments>"},
		{"a type", "variable \"x\" {\n  type = " + repeatToMaxText("list("), nil, "in.hcl"},
		{"a number", job("1e" + strings.Repeat("9", 9)), nil, "in.hcl"},
		{"digits", job(repeatToMaxText("9")), nil, "in.hcl"},
		{"a number in JSON", `{"job":{"j":{"meta":{"a":1e999999999}}}}`, nil, "in.hcl"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var memBefore, memAfter runtime.MemStats
			runtime.ReadMemStats(&memBefore)
			_, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(test.text), VarAssignments: test.vars, RejectsUndeclaredVariables: true})
			runtime.ReadMemStats(&memAfter)
			if !diags.HasErrors() {
				t.Fatal("accepted")
			}
			if diags[0].Subject == nil || diags[0].Subject.Filename != test.file || diags[0].Subject.Start.Line < 1 {
				t.Errorf("diagnostic at %v, want a place in %s: %s", diags[0].Subject, test.file, diags[0].Summary)
			}
			if used := (memAfter.TotalAlloc - memBefore.TotalAlloc) >> 20; used > 1024 {
				t.Errorf("took %d MiB of memory", used)
			}
		})
	}
}

// TestVariableFileIsScanned: variable files are also scanned for deep nesting before
// they are parsed.
func TestVariableFileIsScanned(t *testing.T) {
	for name, text := range map[string]string{
		"HCL":       "x = " + repeatToMaxText("["),
		"HCL JSON":  `{"x":` + repeatToMaxText("["),
		"additions": "x = " + repeatToMaxText("1+") + "1",
	} {
		_, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: []byte("variable \"x\" {}\njob \"j\" {}\n"), VarFileText: text})
		if !diags.HasErrors() || diags[0].Subject == nil || diags[0].Subject.Filename != varTextFileName {
			t.Errorf("%s: got %v", name, diags)
		}
	}
	if _, err := ParseJSON([]byte(`{"Job":` + repeatToMaxText("["))); err == nil || !strings.Contains(err.Error(), "Nesting too deep") {
		t.Errorf("API JSON: got %v", err)
	}
	if _, diags := Format([]byte(repeatToMaxText("a {\n")), "in.hcl"); !diags.HasErrors() || diags[0].Summary != "Nesting too deep" {
		t.Errorf("Format: got %v", diags)
	}
}

// TestOrdinaryDepthIsAccepted: closing brackets decrease the counted depth.
func TestOrdinaryDepthIsAccepted(t *testing.T) {
	many := func(n int, line string) string { return strings.Repeat(line, n) }
	tests := map[string]string{
		"190 brackets":           "locals {\n  a = " + many(190, "[") + many(190, "]") + "\n}\n",
		"conditionals in a list": "locals {\n  a = [" + many(1000, "true ? 1 : 2,") + "]\n}\n",
		"conditionals in lines": "locals {\n" + func() string {
			b := ""
			for i := range 500 {
				b += fmt.Sprintf("  a%d = true ? 1 : 2\n", i)
			}
			return b
		}() + "}\n",
		"subtractions":     "locals {\n  a = 1" + many(1000, " - 1") + "\n}\n",
		"negative numbers": "locals {\n  a = [" + many(1000, "-1,") + "]\n}\n",
		"directives":       "locals {\n  a = \"" + many(1000, "%{if true}x%{endif}") + "\"\n}\n",
		"templates":        "locals {\n  a = \"" + many(1000, "${1}") + "\"\n}\n",
		"splats":           "locals {\n  b = []\n  a = [" + many(1000, "local.b[*],") + "]\n}\n",
		"objects in lines": "locals {\n  a = {\n" + func() string {
			b := ""
			for i := range 500 {
				b += fmt.Sprintf("    a%d = true ? 1 : 2\n", i)
			}
			return b
		}() + "  }\n}\n",
	}
	for name, text := range tests {
		_, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(text + "job \"j\" {}\n")})
		if diags.HasErrors() {
			t.Errorf("%s: %s", name, NomadErrorText(diags))
		}
	}
}

// TestEvaluationIsBounded evaluates texts that are short and create enormous values.
func TestEvaluationIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("evaluates files with the greatest effort that is allowed")
	}
	doubling := func(op string, n int) string {
		b := "locals {\n  a0 = \"" + strings.Repeat("x", 1000) + "\"\n"
		for i := range n {
			b += fmt.Sprintf("  a%d = %s\n", i+1, strings.ReplaceAll(op, "A", fmt.Sprintf("local.a%d", i)))
		}
		return b + "}\njob \"j\" {}\n"
	}
	in := func(meta string) string {
		return "locals {\n  big = join(\"\", [for i in range(100) : \"" + strings.Repeat("x", 1000) + "\"])\n}\njob \"j\" {\n  meta {\n    a = " + meta + "\n  }\n}\n"
	}
	group := func(body string) string { return "job \"j\" {\n" + body + "\n}\n" }
	tests := []struct{ name, text, want string }{
		{"templates that double", doubling(`"${A}${A}"`, 40), "Evaluation too large"},
		{"lists that double", doubling(`[A, A]`, 60), "Evaluation too large"},
		{"objects that double", doubling(`{ a = A, b = A }`, 60), "Evaluation too large"},
		{"lists that only nest", doubling(`[[[[A]]]]`, 1000), "Evaluation too large"},
		{"concat that doubles", doubling(`concat(flatten([A]), flatten([A]))`, 60), "Evaluation too large"},
		{"numbers that square", "locals {\n  a0 = 10\n" + func() string {
			b := ""
			for i := range 40 {
				b += fmt.Sprintf("  a%d = local.a%d * local.a%d\n", i+1, i, i)
			}
			return b
		}() + "}\njob \"j\" {}\n", "Evaluation too large"},
		{"nested loops", in(`join("", flatten([for a in range(1000) : [for b in range(1000) : [for c in range(1000) : [for d in range(1000) : "x"]]]]))`), "Evaluation too large"},
		{"loops in a try", in(`try(join("", flatten([for a in range(1000) : [for b in range(1000) : [for c in range(1000) : "x"]]])), "fallback")`), "Evaluation too large"},
		{"a template of many parts", in(`"` + strings.Repeat("${local.big}", 1000) + `"`), "Evaluation too large"},
		{"template loops", in(`"%{for a in range(1000)}%{for b in range(1000)}${local.big}%{endfor}%{endfor}"`), "Evaluation too large"},
		{"join", in(`join(local.big, split("", substr(local.big, 0, 2000)))`), "the result would be too large"},
		{"replace", in(`replace(local.big, "x", local.big)`), "the result would be too large"},
		{"regex_replace", in(`regex_replace(local.big, "x", local.big)`), "the result would be too large"},
		{"indent", in(`indent(1000000000, "a\nb\nc")`), "the result would be too large"},
		{"setproduct", in(`length(setproduct(range(1000), range(1000), range(1000), range(1000)))`), "the result would be too large"},
		{"format", in(`format("%1000000000d", 1)`), "a width or precision"},
		{"format of a huge number", in(`format("%d", "1e999999999")`), "too large or too small"},
		{"bcrypt", in(`bcrypt("x", 31)`), "the cost may be 16 at most"},
		{"distinct", in(`length(distinct(split("", substr(local.big, 0, 12000))))`), "10000 elements at most"},
		{"jsondecode", in(`jsondecode(join("", [for i in range(300) : "["]))`), "Nesting too deep"},
		{"yamldecode of brackets", in(`yamldecode(join("", [for i in range(300) : "["]))`), "nests more than 200 levels deep"},
		{"yamldecode of dashes", in(`yamldecode(join("", [for i in range(300) : "- "]))`), "nests more than 200 levels deep"},
		{"a panic in a function", in(`pow(-1, 0.5)`), "cannot be computed"},
		{"a number from text", in(`"1e99999999" * 1`), "Evaluation too large"},
		{"jsondecode of a huge number", in(`jsondecode("1e99999999")`), "Number out of range"},
		{"dynamic blocks", group(strings.Repeat("dynamic \"group\" {\nfor_each = range(1000)\nlabels = [\"g\"]\ncontent {\n", 1) +
			"dynamic \"task\" {\nfor_each = range(1000)\nlabels = [\"t\"]\ncontent {\ndynamic \"template\" {\nfor_each = range(1000)\ncontent {}\n}\n}\n}\n}\n}\n"), "Evaluation too large"},
		{"one dynamic block", group("dynamic \"group\" {\nfor_each = split(\"\", \"" + strings.Repeat("x", 20_000) + "\")\nlabels = [\"g\"]\ncontent {}\n}\n"), "10000 blocks at most"},
		{"the file of no end", in(`file("/dev/zero")`), "not a regular file"},
		{"numbers that are long to print", in("jsonencode([" + strings.Repeat("1e999,", 100_000) + "])"), "Evaluation too large"},
		{"locals in a deep chain", "locals {\n" + func() string {
			var b strings.Builder
			for i := range 5_000 {
				fmt.Fprintf(&b, "  a%d = local.a%d\n", i, i+1)
			}
			return b.String()
		}() + "}\njob \"j\" {}\n", "Locals may build on each other"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			// A sixteenth of the budget is enough for a test that exceeds it.
			_, diags := parseWithBudget(maxEvaluationCost/16, ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(test.text), Files: fileaccess.NewReader(fileaccess.Policy{})})
			text := NomadErrorText(diags)
			if !strings.Contains(text, test.want) {
				t.Errorf("got %.300s\nwant %s", text, test.want)
			}
			if strings.Contains(text, "goroutine") {
				t.Errorf("a stack: %s", text)
			}
		})
	}
}
