package commands

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// documentImports are the packages that the Go examples of documents use, by their names.
var documentImports = map[string]string{
	"context": "context", "fmt": "fmt", "os": "os", "testing": "testing", "time": "time", "exec": "os/exec", "errors": "errors",
	"hclspec": "github.com/nomad-lite/nomad-lite/hclspec",
	"device":  "github.com/nomad-lite/nomad-lite/plugins/device",
	"driver":  "github.com/nomad-lite/nomad-lite/plugins/driver",
	"hook":    "github.com/nomad-lite/nomad-lite/plugins/hook",
	"sdk":     "github.com/nomad-lite/nomad-lite/sdk",
	"process": "github.com/nomad-lite/nomad-lite/sdk/process",
	"sdktest": "github.com/nomad-lite/nomad-lite/sdk/sdktest",
}

// documentDeclarations are declarations of the reader that examples of documents use, by the text by which an example uses them.
var documentDeclarations = map[string]string{
	"(*python)": "type python struct{}",
	// The assertion finds a method with a wrong signature, which compiles.
	"&ticker{}": `type ticker struct{}
func (*ticker) Info() sdk.DriverInfo { return sdk.DriverInfo{} }
func (*ticker) Start(context.Context, *sdk.StartRequest) (sdk.Task, error) { return nil, nil }
func tick([]string) int { return 0 }`,
	"pressPowerButtonUntilOff": `var _ sdk.Stopper = (*machine)(nil)
func (*machine) pressPowerButtonUntilOff(context.Context) error { return nil }`,
	"&hello{}": `type hello struct{}
func (*hello) Info() sdk.DriverInfo { return sdk.DriverInfo{} }
func (*hello) Start(context.Context, *sdk.StartRequest) (sdk.Task, error) { return nil, nil }`,
}

// TestGoExamplesOfDocsCompile compiles each Go block of the documents that has no file name. TestDocs builds the others.
func TestGoExamplesOfDocsCompile(t *testing.T) {
	// The files are an overlay of a directory that does not exist, so that they can import the packages of this checkout.
	dir, overlay := t.TempDir(), map[string]string{}
	for document, text := range readDocuments(t) {
		for i, example := range strings.Split("\n"+text, "\n```go\n")[1:] {
			example, _, _ = strings.Cut(example, "\n```")
			name := fmt.Sprintf("%s%d", strings.ReplaceAll(document, "/", "-"), i+1)
			file := filepath.Join(dir, name+".go")
			if err := os.WriteFile(file, []byte(completeExample(example)), 0o644); err != nil {
				t.Fatal(err)
			}
			overlay[filepath.Join(systemtest.RepositoryDir(), "docs/examples", name, "example.go")] = file
		}
	}
	if len(overlay) < 5 {
		t.Fatalf("the documents have only %d examples", len(overlay))
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	encoded, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlayFile, encoded, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-overlay", overlayFile, "./docs/examples/...")
	cmd.Dir = systemtest.RepositoryDir()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the examples of the documents: %v\n%s", err, out)
	}
}

var (
	omittedBody  = regexp.MustCompile(`(?m)^(func .*\S) +\{ … \}`)
	omittedValue = regexp.MustCompile(`\{ ?… ?\}`)
)

// completeExample makes a file of an example: … stands for omitted code, and imports and declarations of the reader are missing.
func completeExample(example string) string {
	example = omittedBody.ReplaceAllString(example, "$1 { panic(0) }")
	example = omittedValue.ReplaceAllString(example, "{}")
	example = regexp.MustCompile(`(?m)^\s*…$`).ReplaceAllString(example, "")
	var header strings.Builder
	if !strings.HasPrefix(example, "package ") {
		header.WriteString("package main\n")
	}
	if !strings.Contains(example, "import (") {
		for _, use := range slices.Sorted(maps.Keys(documentDeclarations)) {
			if strings.Contains(example, use) {
				example += "\n" + documentDeclarations[use] + "\n"
			}
		}
		if !strings.Contains(example, "func main() {") {
			example += "\nfunc main() {}\n"
		}
		for _, name := range slices.Sorted(maps.Keys(documentImports)) {
			if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(example) {
				fmt.Fprintf(&header, "import %q\n", documentImports[name])
			}
		}
	}
	return header.String() + example
}
