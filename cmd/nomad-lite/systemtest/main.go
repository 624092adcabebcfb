package systemtest

import (
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/racereport"
)

// RunTestsOrProgram runs the tests of a package, and fails if they leave files, cgroups or mounts on the machine. If
// the test binary is executed under the name of one of the programs, RunTestsOrProgram runs that program instead. It
// does not return.
func RunTestsOrProgram(m testscript.TestingM, mainByProgramName map[string]func()) {
	// Most tests wait for processes, so more of them run in parallel than there are processors, unless -parallel is
	// given.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err) // Set fails only for an unknown flag
	}
	testscript.Main(leakCheckedTests{m}, mainByProgramName)
}

// leakCheckedTests runs the tests of the package, and fails if they leave files, cgroups or mounts on the
// machine, or if the race detector reports a race in one of their processes.
type leakCheckedTests struct{ tests testscript.TestingM }

func (l leakCheckedTests) Run() int {
	before := findLeftoverPathsAndMounts()
	reports := racereport.CollectInNewDir()
	code := l.tests.Run()
	stopSharedChromium()
	code = max(code, reports.PrintAndRemove(os.Stderr))
	left := slices.DeleteFunc(findLeftoverPathsAndMounts(), func(trace string) bool { return slices.Contains(before, trace) })
	// Files of other processes, such as those of another package's tests, disappear after some time.
	for deadline := time.Now().Add(WaitTimeout); ; time.Sleep(50 * time.Millisecond) {
		now := findLeftoverPathsAndMounts()
		left = slices.DeleteFunc(left, func(trace string) bool { return !slices.Contains(now, trace) || isLeftoverInUse(trace) })
		if len(left) == 0 || code != 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, trace := range left {
		fmt.Fprintln(os.Stderr, "left behind:", trace)
		code = max(code, 1)
	}
	return code
}

// isLeftoverInUse reports whether a leftover path belongs to a running process, such as one of another package's tests
// or of a user's job in another terminal. The script command "alone" finds running processes of tests.
func isLeftoverInUse(leftoverPath string) bool {
	inUse := false
	_ = filepath.WalkDir(leftoverPath, func(path string, d fs.DirEntry, err error) error { // an error means that the cgroup was removed during the walk
		if err == nil && d.Name() == "cgroup.procs" {
			procs, _ := os.ReadFile(path)
			inUse = inUse || len(procs) > 0
		}
		return nil
	})
	if inUse {
		return true
	}
	conn, err := net.Dial("unix", filepath.Join(leftoverPath, "keeper.sock"))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// scriptDirs is the set of the working directories of this package's scripts. Tests of other packages run at the same
// time and have mounts below other directories.
var scriptDirs sync.Map

// findLeftoverPathsAndMounts returns the files, cgroups and mounts of agents that are outside of a data directory.
func findLeftoverPathsAndMounts() []string {
	var all []string
	for _, pattern := range []string{"/run/nomad-lite/*", "/tmp/nomad-lite-*-run/*", "/sys/fs/cgroup/*/nomad/*-*-*-*-*.*", "/sys/fs/cgroup/nomad.slice/*/*.scope"} {
		found, _ := filepath.Glob(pattern)
		all = append(all, found...)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		scriptDirs.Range(func(dir, _ any) bool {
			if strings.Contains(line, " "+dir.(string)+"/") {
				all = append(all, line)
			}
			return true
		})
	}
	return all
}
