// Package overlay runs tests with one changed file, and leaves the work tree alone.
package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// testTimeout limits each test program: a change can make a test block forever.
const testTimeout = 2 * time.Minute

// CompileError means that the changed file does not compile.
type CompileError struct{ Output string }

func (e *CompileError) Error() string { return "the change does not compile: " + e.Output }

// Test runs go test in root with args, which are flags and packages. The file, whose path is relative to root, has the changed content.
// Test returns the first failed test's name, or an empty text if all tests pass. It returns a *CompileError if the change does not compile.
// Test blocks until the tests end, and may be called concurrently.
func Test(ctx context.Context, root, file string, changed []byte, args ...string) (failed string, err error) {
	dir, err := os.MkdirTemp("", "overlay")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	changedPath, overlayPath := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, file): changedPath}})
	if err := errors.Join(err, os.WriteFile(changedPath, changed, 0o600), os.WriteFile(overlayPath, overlay, 0o600)); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-overlay", overlayPath, "-vet=off", "-failfast", "-timeout", testTimeout.String()}, args...)...)
	cmd.Dir = root
	output, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case !errors.As(err, &exit):
		return "", err
	case strings.Contains(string(output), "[build failed]"):
		return "", &CompileError{string(output)}
	}
	for line := range strings.Lines(string(output)) {
		if test, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			return strings.Fields(test)[0], nil
		}
	}
	return "the tests do not end", nil
}
