package java

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// FindRuntime returns an error if the program java is in no directory of the PATH of this process. An agent without
// it needs no plugin process to find that out.
func FindRuntime() error {
	_, err := findProgram()
	return err
}

// findProgram returns the path of the program java that is in a directory of the PATH of this process. It
// has no symbolic links, which can lead through directories that tasks do not have.
func findProgram() (string, error) {
	path, err := exec.LookPath("java")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("no Java runtime: the program java is in no directory of the agent's PATH (%s)", os.Getenv("PATH"))
	}
	if err != nil {
		return "", fmt.Errorf("find the Java runtime: %w", err)
	}
	return path, nil
}

// jvmVersion is what a virtual machine prints about itself.
type jvmVersion struct {
	version string // such as "17.0.15" or "1.8.0_392"
	runtime string // such as "OpenJDK Runtime Environment (build 17.0.15+6)"; can be empty
	vm      string // such as "OpenJDK 64-Bit Server VM (build 17.0.15+6, mixed mode)"; can be empty
}

// versionTimeout limits the life of a virtual machine that prints its version.
const versionTimeout = 20 * time.Second

// versionCache has the version of a virtual machine until its program is replaced: readVersion starts a
// virtual machine.
type versionCache struct {
	mu      sync.Mutex
	file    fileID
	version jvmVersion
}

// fileID identifies the content of a file. The zero value identifies no file.
type fileID struct {
	path     string
	modified time.Time
	size     int64
}

// get returns the version of the virtual machine with this program. Errors are not cached.
func (c *versionCache) get(ctx context.Context, program string) (jvmVersion, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, err := os.Stat(program)
	if err != nil {
		return jvmVersion{}, err
	}
	file := fileID{path: program, modified: info.ModTime(), size: info.Size()}
	if file == c.file {
		return c.version, nil
	}
	version, err := readVersion(ctx, program)
	if err == nil {
		c.file, c.version = file, version
	}
	return version, err
}

func readVersion(ctx context.Context, program string) (jvmVersion, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-version")
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	// The virtual machine must not outlive this process: the agent would take it for a task.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the kernel sends the signal when the thread exits that has started the process
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return jvmVersion{}, fmt.Errorf("%s -version: no result within %v", program, versionTimeout)
	}
	firstLine, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil {
		return jvmVersion{}, fmt.Errorf("%s -version: %w: %.300s", program, err, firstLine)
	}
	version, ok := parseVersion(string(out))
	if !ok {
		return jvmVersion{}, fmt.Errorf("%s -version prints no version: %.300s", program, firstLine)
	}
	return version, nil
}

// parseVersion returns the version in the output of `java -version`: a line such as
//
//	openjdk version "17.0.15" 2025-04-15
//
// and the two lines after it, about the runtime and about the virtual machine.
func parseVersion(output string) (v jvmVersion, ok bool) {
	lines := strings.Split(output, "\n")
	for i, line := range lines {
		if v.version, ok = quotedVersion(line); ok {
			lines = lines[i+1:]
			break
		}
	}
	if !ok {
		return jvmVersion{}, false
	}
	for _, part := range []*string{&v.runtime, &v.vm} {
		if len(lines) > 0 {
			*part, lines = strings.TrimSpace(lines[0]), lines[1:]
		}
	}
	return v, true
}

// quotedVersion returns the version in a line such as `java version "1.8.0_392"`. Other lines can come
// before it, such as "Picked up JAVA_TOOL_OPTIONS: -Xmx1g".
func quotedVersion(line string) (string, bool) {
	product, rest, found := strings.Cut(line, ` version "`)
	version, _, closed := strings.Cut(rest, `"`)
	return version, found && closed && version != "" && !strings.Contains(product, " ")
}
