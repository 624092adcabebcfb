package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestOneChangedFile(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module m\n",
		"a.go":      "package m\n\nfunc One() int { return 1 }\n",
		"a_test.go": "package m\n\nimport \"testing\"\n\nfunc TestOne(t *testing.T) {\n\tif One() != 1 {\n\t\tt.Fail()\n\t}\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	test := func(body string) (string, error) {
		return Test(t.Context(), root, "a.go", []byte("package m\n\nfunc One() int { return "+body+" }\n"), "./...")
	}
	if failed, err := test("2 - 1"); failed != "" || err != nil {
		t.Errorf("the same result: %q, %v", failed, err)
	}
	if failed, err := test("2"); failed != "TestOne" || err != nil {
		t.Errorf("another result: %q, %v", failed, err)
	}
	if _, err := test("x"); !errors.As(err, new(*CompileError)) {
		t.Errorf("no compile error: %v", err)
	}
}
