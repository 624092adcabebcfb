package httpapi

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
)

// pageTypesFile has the declarations with which tsc checks the modules of the web page.
const pageTypesFile = "../ui/types/api.d.ts"

// TestPageTypes checks that the declarations are those of the OpenAPI document.
func TestPageTypes(t *testing.T) {
	document, err := json.Marshal(newOpenAPIDocument(newFixture(t, nil).routes))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", "-C", "../../../internal/tools", "./apitypes")
	cmd.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0") // the race detector of CI would build all tools once more
	cmd.Stdin, cmd.Stderr = bytes.NewReader(document), os.Stderr
	want, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(pageTypesFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(pageTypesFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is out of date: make page-types writes it", pageTypesFile)
	}
}
