package jobspec

import (
	"fmt"
	"strings"
	"testing"
)

func TestWriteDiagnosticsOfGarbage(t *testing.T) {
	text := []byte("job \"x\" {\n" + strings.Repeat("  nope\n", 200) + "}\n")
	file, diags := Parse(ParseInput{DiagnosticFileName: "x.hcl", Text: text})
	var out strings.Builder
	if err := WriteDiagnostics(&out, diags, file.SourceTextByFileName); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("and %d more\n", len(diags)-maxShownDiagnostics)
	if len(diags) <= maxShownDiagnostics || !strings.HasSuffix(out.String(), want) {
		t.Errorf("%d diagnostics end with %q, want %q", len(diags), out.String()[max(0, out.Len()-40):], want)
	}
}
