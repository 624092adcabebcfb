package jobspec

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// All fuzz targets check the same for every text: Parse returns, does not panic, and each
// diagnostic refers to an existing text. A parsed job is unchanged after a round trip through its
// own JSON.

// Seeds are small, because the fuzzer minimizes its findings.

func checkParse(t *testing.T, src ParseInput) {
	t.Helper()
	file, diags := Parse(src)
	for _, diag := range diags {
		if strings.Contains(diag.Detail, "goroutine ") {
			t.Fatalf("a stack: %s", diag.Detail)
		}
		if at := diag.Subject; at != nil && at.Start.Line > 0 {
			text, ok := file.SourceTextByFileName[at.Filename]
			if !ok || at.Start.Byte > len(text) && !startsLikeJSON(text) {
				t.Fatalf("%s is in no text", at)
			}
		}
	}
	var printedDiagnostics bytes.Buffer
	if err := WriteDiagnostics(&printedDiagnostics, diags, file.SourceTextByFileName); err != nil {
		t.Fatal(err)
	}
	if (file.Job == nil) != diags.HasErrors() {
		t.Fatalf("job %v with %v", file.Job, diags)
	}
	if file.Job == nil {
		return
	}
	var firstJSON, secondJSON bytes.Buffer
	if err := EncodeJobRunOutput(&firstJSON, file.Job); err != nil {
		return // an infinite number
	}
	job, err := ParseJSON(firstJSON.Bytes())
	if err != nil {
		if strings.Contains(err.Error(), "Nesting too deep") || strings.Contains(err.Error(), "out of range") {
			return
		}
		t.Fatal(err)
	}
	if err := EncodeJobRunOutput(&secondJSON, job); err != nil {
		t.Fatal(err)
	}
	if !sameJSON(t, firstJSON.Bytes(), secondJSON.Bytes()) {
		t.Fatalf("comes back from its JSON as\n%s\nwas\n%s", secondJSON.Bytes(), firstJSON.Bytes())
	}
}

// sameJSON compares decoded values, because numbers beyond 2^53 lose digits in the
// round trip.
func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var jsonTexts [2]string
	for i, text := range [][]byte{a, b} {
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		jsonTexts[i] = string(out)
	}
	return jsonTexts[0] == jsonTexts[1]
}

func FuzzHCL(f *testing.F) {
	for _, body := range []string{
		"config {\na = { b = [1, null, \"${c}\"] }\nd \"e\" { f = 1.5 }\n}",
		"env = { A = 1 }\nmeta {\nb = true\n}",
		"template {\ndata = <<-E\n  ${x}\n  %{ if true }y%{ endif }\n  E\nchange_script {}\n}",
		"resources {\ncpu = 1\nnetwork {\nport \"p\" { static = 80 }\n}\ndevice \"d\" {}\n}",
		"service {\ncheck {\nheader {\nA = [\"b\"]\n}\ninterval = \"1s\"\n}\nconnect {\nsidecar_service {\nproxy {\nconfig {\nx = 1\n}\n}\n}\n}\n}",
		"scaling \"cpu\" {\nmax = 1\npolicy {}\n}\nidentity {}\nvault {}\nsecret \"s\" {\nconfig {}\n}",
		"constraint {\ndistinct_hosts = true\n}\naffinity {\nweight = 300\n}",
	} {
		f.Add([]byte(jobWithTaskBody(body)))
	}
	f.Add([]byte("variable \"x\" {\n  type = map(number)\n  default = { a = 1 }\n  validation {\n    condition = var.x.a > 0\n    error_message = \"no\"\n  }\n}\nvariables {\n  y = 1\n}\njob \"j\" {\n  type = try(var.z, var.y)\n}\n"))
	f.Add([]byte("job \"j\" {\n  dynamic \"group\" {\n    for_each = [1]\n    labels = [\"a\"]\n    content {}\n  }\n}\n"))
	f.Add([]byte("locals {\n  a = local.b\n  b = [for x in local.a : x...]\n}\njob j {}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		checkParse(t, ParseInput{DiagnosticFileName: "in.hcl", Text: text})
	})
}

func FuzzHCLJSON(f *testing.F) {
	f.Add([]byte(`{"//":"c","variable":{"x":{"type":"string","default":"a"}},"locals":{"y":"${var.x}"},"job":{"j":{"meta":{"a":"${ local.y } $${z}"}}}}`))
	f.Add([]byte(`{"job":{"j":{"group":{"g":{"network":{"port":{"p":{}}},"dynamic":{"task":{"for_each":[1],"labels":["t${task.value}"],"content":{"config":{"a":{"b":[1.5,null,"${c}"]}}}}}}}}}}`))
	f.Add([]byte(`{"job":[{"a":[{"meta":{"x":"${y}"}}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if !startsLikeJSON(text) {
			text = append([]byte("{"), text...)
		}
		checkParse(t, ParseInput{DiagnosticFileName: "in.hcl", Text: text})
	})
}

func FuzzAPIJSON(f *testing.F) {
	f.Add([]byte(`{"Job":{"ID":"a","TaskGroups":[{"Count":1,"Tasks":[{"KillTimeout":1,"Config":{"a":[1,{"b":null}]}}]}]}}`))
	f.Add([]byte(`{"ID":"a"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		job, err := ParseJSON(text)
		if err != nil {
			return
		}
		if err := EncodeJobRunOutput(&bytes.Buffer{}, job); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzVariableFile(f *testing.F) {
	job := []byte("variable \"x\" {\n  type = list(object({ a = number }))\n}\nvariable \"y\" {}\njob \"j\" {\n  meta {\n    a = jsonencode(var.x)\n    b = var.y\n  }\n}\n")
	for _, seed := range []string{"x = [{ a = 1 }]\ny = 2", `{"x":[{"a":"1"}],"y":null}`, "variable \"x\" {}", "x = f(a)", "y = <<A\n\nA\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		checkParse(t, ParseInput{DiagnosticFileName: "in.hcl", Text: job, VarFileText: text})
		if !strings.Contains(text, "\x00") {
			checkParse(t, ParseInput{DiagnosticFileName: "in.hcl", Text: job, VarAssignments: []string{"x=" + text, "y=" + text}, Environ: []string{"NOMAD_VAR_x=" + text}, RejectsUndeclaredVariables: true})
		}
	})
}

func FuzzDuration(f *testing.F) {
	for _, seed := range []string{`"1h2m3.5s"`, `"1d"`, "10", "1.5", "true", "null", `"-5us"`, "1e300", `"${a}"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		checkParse(t, ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(jobWithTaskBody("kill_timeout = " + text))})
	})
}

func FuzzSize(f *testing.F) {
	for _, seed := range []string{"300", `"300"`, "1.5", "1e3", "-1", "9223372036854775808", `"10 MB"`, "null", "[1]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		checkParse(t, ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(jobWithTaskBody("resources {\nmemory = " + text + "\n}\nlogs {\nmax_file_size = " + text + "\n}"))})
	})
}

func FuzzInterpolation(f *testing.F) {
	for _, seed := range []string{"${attr.kernel.name}", "$${x}", "${ env[\"X\"] }", "${x.0[3][\"F\"].5}", "%{ if a }b%{ endif }", "${upper(a.b)}", "${a}}", "${~ a ~}", "${[for x in y : x]}", "${a.*.b}", "a\nb ${\tc}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Skip()
		}
		for _, job := range []string{
			jobWithConfig("a = <<END\n" + text + "\nEND\n"),
			jobWithConfig(`a = "` + text + `"`),
			`{"job":{"j":{"task":{"t":{"config":{"a":` + string(quoted) + `},"env":{"A":` + string(quoted) + `}}}}}}`,
		} {
			checkParse(t, ParseInput{DiagnosticFileName: "in.hcl", Text: []byte(job)})
		}
	})
}
