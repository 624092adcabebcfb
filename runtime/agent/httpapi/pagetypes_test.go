package httpapi

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
)

// pageTypesFile has the declarations with which tsc checks the modules of the web page.
const pageTypesFile = "../ui/types/api.d.ts"

// TestReferencePageTypes checks that the declarations are those of the OpenAPI document.
func TestReferencePageTypes(t *testing.T) {
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
	golden.CheckReference(t, pageTypesFile, string(want))
}
