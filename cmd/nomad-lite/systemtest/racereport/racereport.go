package racereport

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// ReportDir is the path of a directory with reports of the race detector.
type ReportDir string

// CollectInNewDir changes the environment so that this process and its child processes write their reports to a new
// directory. It panics if that fails. The caller must call PrintAndRemove once, after the tests.
func CollectInNewDir() ReportDir {
	dir, err := os.MkdirTemp("", "nomad-lite-races")
	if err == nil {
		err = os.Chmod(dir, 0o777|os.ModeSticky) // some processes run as other users
	}
	if err == nil {
		// By default, each process under the race detector sleeps for a second before it exits.
		err = os.Setenv("GORACE", "atexit_sleep_ms=0 log_path="+filepath.Join(dir, "race"))
	}
	if err != nil {
		panic(err)
	}
	return ReportDir(dir)
}

// PrintAndRemove prints the reports, removes the directory, and returns the exit code of the tests: 1 if there is a
// report.
func (r ReportDir) PrintAndRemove(w io.Writer) (code int) {
	files, err := filepath.Glob(filepath.Join(string(r), "race.*"))
	if err != nil {
		panic(err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		fmt.Fprintf(w, "%s: %v\n%s\n", filepath.Base(path), err, text)
		code = 1
	}
	if err := os.RemoveAll(string(r)); err != nil {
		fmt.Fprintln(w, err)
		code = 1
	}
	return code
}
