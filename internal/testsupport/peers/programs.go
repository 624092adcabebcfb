package peers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

const folderEnvVar = "NOMAD_LITE_PEERS"

// findArchive returns the path of a compressed program. The error is an os.ErrNotExist if the machine does not have it.
func findArchive(name string) (string, error) {
	folder := os.Getenv(folderEnvVar)
	if folder == "" {
		_, file, _, _ := runtime.Caller(0)
		folder = filepath.Join(filepath.Dir(file), "..", "..", "..", "shared", "peers")
	}
	packed := filepath.Join(folder, name+".xz")
	_, err := os.Stat(packed)
	return packed, err
}

// HasProgram reports whether the machine has a program.
func HasProgram(name string) bool {
	_, err := findArchive(name)
	return err == nil
}

// unpackedPrograms are the programs that ProgramOrSkip has unpacked for the tests of this process.
var unpackedPrograms struct {
	mu    sync.Mutex
	dir   string // empty before the first call
	paths map[string]string
}

// ProgramOrSkip returns the path of a program, which it unpacks at the first call. It skips the test if the machine does not have
// the program, or if slow tests are not enabled. It may be called concurrently. TestMain calls RemovePrograms at the end.
func ProgramOrSkip(t testing.TB, name string) string {
	t.Helper()
	slowtest.Skip(t, "starts programs of other projects, for a minute or two")
	if _, err := findArchive(name); err != nil {
		t.Skipf("no program %s: set %s to the folder that contains it: %v", name, folderEnvVar, err)
	}
	u := &unpackedPrograms
	u.mu.Lock()
	defer u.mu.Unlock()
	if path := u.paths[name]; path != "" {
		return path
	}
	if u.dir == "" {
		dir, err := os.MkdirTemp("", "nomad-lite-peers")
		if err != nil {
			t.Fatal(err)
		}
		u.dir, u.paths = dir, map[string]string{}
		if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(u.dir, "bin", name)
	if err := Unpack(name, path); err != nil {
		t.Fatal(err)
	}
	u.paths[name] = path
	return path
}

// ProgramDir returns the directory of the programs that ProgramOrSkip has unpacked, or the empty string.
func ProgramDir() string {
	unpackedPrograms.mu.Lock()
	defer unpackedPrograms.mu.Unlock()
	return unpackedPrograms.dir
}

// RemovePrograms removes the programs that ProgramOrSkip has unpacked. It is called after the tests.
func RemovePrograms() error {
	if dir := ProgramDir(); dir != "" {
		return os.RemoveAll(dir)
	}
	return nil
}

// Unpack writes a program to a path, at which no program sees an incomplete file: it can be in the plugin directory of an agent
// that runs. The parent of the file's directory is on the same file system, and has no file NAME.unpacked, which Unpack writes
// and renames.
func Unpack(name, path string) error {
	packed, err := findArchive(name)
	if err != nil {
		return err
	}
	unpacked := filepath.Join(filepath.Dir(filepath.Dir(path)), name+".unpacked")
	out, err := os.OpenFile(unpacked, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	unpack := exec.Command("xz", "-dc", packed)
	unpack.Stdout = out
	if err := errors.Join(unpack.Run(), out.Close()); err != nil {
		os.Remove(unpacked)
		return fmt.Errorf("unpack %s: %w", packed, err)
	}
	return os.Rename(unpacked, path)
}
