package hostprocess

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

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// FindProgramInPath returns the path of a program that is in a directory of the PATH of this process, without symbolic
// links. The error is os.ErrNotExist if no directory has the program.
func FindProgramInPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return "", notFoundError(fmt.Sprintf("the program %s is in no directory of the agent's PATH (%s)", name, os.Getenv("PATH")))
	}
	if err != nil {
		return "", fmt.Errorf("find the program %s: %w", name, err)
	}
	return path, nil
}

type notFoundError string

func (e notFoundError) Error() string { return string(e) }

func (notFoundError) Is(target error) bool { return target == os.ErrNotExist }

// versionTimeout limits the life of a process that prints its version.
const versionTimeout = 20 * time.Second

// ProgramVersionCache caches the version V of a program until the program is replaced, because reading the
// version starts a process. The zero value is empty and ready for use.
type ProgramVersionCache[V any] struct {
	mu            sync.Mutex
	cachedFile    fileID
	cachedVersion V
}

// fileID identifies the content of a file. The zero value identifies no file.
type fileID struct {
	path    string
	modTime time.Time
	size    int64
}

// GetOrRunProgram returns the version of a program. If the version is not cached, GetOrRunProgram runs
// the program with versionFlag, and parses the output. Errors are not cached.
func (c *ProgramVersionCache[V]) GetOrRunProgram(ctx context.Context, program, versionFlag string, parse func(output string) (V, bool)) (version V, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, err := os.Stat(program)
	if err != nil {
		return version, err
	}
	file := fileID{path: program, modTime: info.ModTime(), size: info.Size()}
	if file == c.cachedFile {
		return c.cachedVersion, nil
	}
	version, err = runProgramForVersion(ctx, program, versionFlag, parse)
	if err == nil {
		c.cachedFile, c.cachedVersion = file, version
	}
	return version, err
}

func runProgramForVersion[V any](ctx context.Context, program, versionFlag string, parse func(output string) (V, bool)) (version V, err error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	opcount.Count(opcount.Fork)
	cmd := exec.CommandContext(ctx, program, versionFlag)
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	// The started process must not outlive this plugin process, because the agent would take it for
	// a task.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the kernel sends the signal when the thread exits that has started the process
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return version, fmt.Errorf("%s %s: no result within %v", program, versionFlag, versionTimeout)
	}
	firstLine, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil {
		return version, fmt.Errorf("%s %s: %w: %.300s", program, versionFlag, err, firstLine)
	}
	version, ok := parse(string(out))
	if !ok {
		return version, fmt.Errorf("%s %s prints no version: %.300s", program, versionFlag, firstLine)
	}
	return version, nil
}
