package jobspec

import (
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/runtime/job/fileaccess"
)

const rangesJob = `job "j" {
  meta {
    a = 1
  }
  group "g" {
    network {
      mode = "bridge"
      port "http" {}
    }
    service {}
    service {
      check {}
    }
    volume "v" {
      type = "csi"
    }
    task "t" {
      vault {}
      driver = "x"
      template {}
      template {
        destination = "d"
      }
      scaling "cpu" {
        max = 1
      }
      env = { A = 1 }
    }
  }
  task "solo" {
    driver = "y"
  }
  vault {}
}
`

func TestRange(t *testing.T) {
	file, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(rangesJob)})
	if diags.HasErrors() {
		t.Fatal(NomadErrorText(diags))
	}
	tests := []struct {
		path string
		want string
	}{
		{"", "in.hcl:1,1-8"},
		{"meta a", "in.hcl:3,5-10"},
		{"group g", "in.hcl:5,3-12"},
		{"group g network", "in.hcl:6,5-12"},
		{"group g network 0", "in.hcl:6,5-12"},
		{"group g network 0 mode", "in.hcl:7,7-22"},
		{"group g network 0 port http", "in.hcl:8,7-18"},
		{"group g service 1", "in.hcl:11,5-12"},
		{"group g service 1 check 0", "in.hcl:12,7-12"},
		{"group g volume v type", "in.hcl:15,7-19"},
		{"group g task t vault", "in.hcl:18,7-12"},
		{"group g task t vault 0", "in.hcl:18,7-12"},
		{"group g task t driver", "in.hcl:19,7-19"},
		{"group g task t template 1 destination", "in.hcl:22,9-26"},
		{"group g task t template 0 destination", "in.hcl:20,7-15"},
		{"group g task t scaling cpu max", "in.hcl:25,9-16"},
		{"group g task t env A", "in.hcl:27,7-22"},
		{"group g task t artifact 3", "in.hcl:17,5-13"},
		{"group solo task solo driver", "in.hcl:31,5-17"},
		{"group solo task solo vault", "in.hcl:33,3-8"},
		{"group none", "in.hcl:1,1-8"},
	}
	for _, test := range tests {
		rng, ok := file.InnermostRange(strings.Fields(test.path)...)
		if got := rng.String(); !ok || got != test.want {
			t.Errorf("%q: got %s %v, want %s", test.path, got, ok, test.want)
		}
	}
	if rng, ok := (&ParsedFile{}).InnermostRange("group", "g"); ok {
		t.Errorf("a file without ranges answers %s", rng)
	}
}

func TestWriteDiagnostics(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{
			"the place is marked",
			"job \"j\" {\n\tgroup \"g\" {\n\t\tcount = \"x\"\n\t}\n}\n",
			"in.hcl:3,12-13: Unsuitable value type; Unsuitable value: a number is required\n" +
				"    3 | \t\tcount = \"x\"\n      | \t\t         ^\n",
		},
		{
			"a place of many lines is marked to the end of its first",
			"job \"j\" {\n  meta = {\n    a = [1]\n  }\n}\n",
			"in.hcl:2,10-11: Unsuitable value type; Unsuitable value: string required, but have tuple\n" +
				"    2 |   meta = {\n      |          ^\n",
		},
		{
			"the end of the file has no line",
			"job \"j\" {",
			"in.hcl:1,9-10: Unclosed configuration block; There is no closing brace for this block before the end of the file. This may be caused by incorrect brace nesting elsewhere in this file.\n" +
				"    1 | job \"j\" {\n      |         ^\n",
		},
		{
			"what follows from a fault is not said",
			"job \"j\" {\n  meta {\n    a = var.nope\n  }\n}\n",
			"in.hcl:3,12-17: Unsupported attribute; This object does not have an attribute named \"nope\".\n" +
				"    3 |     a = var.nope\n      |            ^^^^^\n",
		},
		{
			"a variable without a value is marked where it is declared",
			"variable \"x\" {}\njob \"j\" {}\n",
			"in.hcl:1,1-13: Unset variable \"x\"; A used variable must be set or have a default value; see https://developer.hashicorp.com/nomad/docs/reference/hcl2/variables  for details.\n" +
				"    1 | variable \"x\" {}\n      | ^^^^^^^^^^^^\n",
		},
		{
			"a warning says so",
			"locals {\n  b = 1\n}\nlocals {\n  b = 2\n}\njob \"j\" {}\n",
			"Warning: in.hcl:5,3-4: Duplicate local; The local \"b\" was already defined at in.hcl:2,3-8. This later definition counts.\n" +
				"    5 |   b = 2\n      |   ^\n",
		},
	}
	for _, test := range tests {
		file, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(test.text)})
		var b strings.Builder
		if err := WriteDiagnostics(&b, diags, file.SourceTextByFileName); err != nil {
			t.Fatal(err)
		}
		if b.String() != test.want {
			t.Errorf("%s:\ngot\n%s\nwant\n%s", test.name, b.String(), test.want)
		}
	}
	var b strings.Builder
	if err := WriteDiagnostics(&b, hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "just this"}}, nil); err != nil || b.String() != "just this\n" {
		t.Errorf("without place and detail: got %q, %v", b.String(), err)
	}
}

// TestSnippetOfVarArgument: diagnostics also show the position of an error in a -var
// argument.
func TestSnippetOfVarArgument(t *testing.T) {
	file, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: []byte("variable \"x\" {\n  type = bool\n}\njob \"j\" {}\n"), VarAssignments: []string{"x=yes"}})
	var b strings.Builder
	if err := WriteDiagnostics(&b, diags, file.SourceTextByFileName); err != nil {
		t.Fatal(err)
	}
	if want := "    1 | yes\n      | ^^^\n"; !strings.Contains(b.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestParseJSON(t *testing.T) {
	tests := []struct{ name, text, id, err string }{
		{"in a wrapper", `{"Job":{"ID":"a"}}`, "a", ""},
		{"bare", `{"ID":"a"}`, "a", ""},
		{"any case, unknown keys", `{"job":{"id":"a","Unknown":{"x":1}}}`, "a", ""},
		{"a duration is a number", `{"Job":{"TaskGroups":[{"Tasks":[{"KillTimeout":"10s"}]}]}}`, "", "Failed to parse JSON job: json: cannot unmarshal string into Go struct field Task.Job.TaskGroups.Tasks.KillTimeout of type time.Duration"},
		{"a fault has a place", "{\n  \"Job\": {]\n}", "", "Failed to parse JSON job: line 2, column 11: invalid character"},
		{"nothing", "", "", "Failed to parse JSON job: "},
	}
	for _, test := range tests {
		job, err := ParseJSON([]byte(test.text))
		switch {
		case test.err != "":
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: got %v, want %s", test.name, err, test.err)
			}
		case err != nil:
			t.Errorf("%s: %v", test.name, err)
		case *job.ID != test.id:
			t.Errorf("%s: got id %s", test.name, *job.ID)
		}
	}
}

func TestFormat(t *testing.T) {
	got, diags := Format([]byte("job \"j\" {\ntype=\"batch\"\n  priority   = 1\n}\n"), "in.hcl")
	if want := "job \"j\" {\n  type     = \"batch\"\n  priority = 1\n}\n"; diags.HasErrors() || string(got) != want {
		t.Errorf("got %s %v, want %s", got, diags, want)
	}
	if got, diags := Format([]byte("job \"j\" {\n"), "in.hcl"); !diags.HasErrors() || got != nil {
		t.Errorf("a bad text: got %s", got)
	}
}

// TestDisabledFileFunctions lists the functions that the parse endpoint must reject.
func TestDisabledFileFunctions(t *testing.T) {
	for _, call := range []string{`file("x")`, `basename("a/b")`, `dirname("a/b")`, `abspath("x")`, `filebase64("x")`, `fileexists("x")`, `length(fileset(".", "*"))`, `pathexpand("~")`} {
		text := []byte("job \"j\" {\n  meta {\n    a = " + call + "\n  }\n}\n")
		if _, diags := Parse(ParseInput{DiagnosticFileName: "input.hcl", Text: text}); !strings.Contains(NomadErrorText(diags), "failed: filesystem function disabled.") {
			t.Errorf("%s: got %s", call, NomadErrorText(diags))
		}
		if _, diags := Parse(ParseInput{DiagnosticFileName: "input.hcl", Text: text, Files: fileaccess.NewReader(fileaccess.Policy{})}); strings.Contains(NomadErrorText(diags), "disabled") {
			t.Errorf("%s: got %s", call, NomadErrorText(diags))
		}
	}
}

// TestFunctionNames checks the list of functions, and that other functions are absent.
func TestFunctionNames(t *testing.T) {
	want := strings.Fields(`abs base64decode base64encode bcrypt can ceil chomp chunklist cidrhost cidrnetmask cidrsubnet cidrsubnets coalesce coalescelist compact concat contains convert csvdecode distinct element flatten floor format formatdate formatlist indent index join jsondecode jsonencode keys length log lookup lower max md5 merge min parseint pow range regex_replace replace reverse rsadecrypt setintersection setproduct setunion sha1 sha256 sha512 signum slice sort split strlen strrev substr timeadd title trim trimprefix trimspace trimsuffix try upper urlencode uuidv4 uuidv5 values yamldecode yamlencode zipmap
		abspath basename dirname file filebase64 fileexists fileset pathexpand`)
	table := functionTable(&evaluationBudget{maxCost: maxEvaluationCost}, fileaccess.NewReader(fileaccess.Policy{}), func(string) {})
	for _, name := range want {
		if _, ok := table[name]; !ok {
			t.Errorf("no function %s", name)
		}
	}
	if len(table) != len(want) {
		t.Errorf("%d functions, want %d", len(table), len(want))
	}
}

// TestParseConcurrently: calls of Parse share only immutable tables.
func TestParseConcurrently(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			file, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(rangesJob)})
			if diags.HasErrors() || *file.Job.ID != "j" {
				t.Errorf("got %v", diags)
			}
		})
	}
	wg.Wait()
}
