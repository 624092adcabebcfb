package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	programPackage = "github.com/nomad-lite/nomad-lite/cmd/nomad-lite"
	versionPackage = programPackage + "/version"
)

// goSettings are the settings of the Go tool that choose where modules, build results and the tool itself are, but do not
// change the program.
var goSettings = []string{"GOPROXY", "GONOPROXY", "GOSUMDB", "GONOSUMDB", "GOMODCACHE", "GOCACHE", "GOTOOLCHAIN"}

// readGoSettings returns goSettings in the form of environment variables. They can be set by go env -w.
func readGoSettings(ctx context.Context, dir string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"env", "-json"}, goSettings...)...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	var values map[string]string
	if err := json.Unmarshal(out, &values); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	var settings []string
	for name, value := range values {
		settings = append(settings, name+"="+value)
	}
	return settings, nil
}

// compile builds the program for a target. The result depends on the sources and on the version of Go alone.
func compile(ctx context.Context, o options, target, path string) error {
	system, arch, _ := strings.Cut(target, "/")
	// The release and its revision are set by the linker, because the record of the Go tool exists only in a clone.
	link := []string{"-s", "-w", "-buildid=",
		"-X", versionPackage + ".Release=" + o.version,
		"-X", versionPackage + ".ReleaseRevision=" + o.revision,
		"-X", versionPackage + ".ReleaseCommitTime=" + o.time.Format(time.RFC3339),
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags="+strings.Join(link, " "), "-o", path, programPackage)
	cmd.Dir = o.sourceDir
	settings, err := readGoSettings(ctx, o.sourceDir)
	if err != nil {
		return err
	}
	cmd.Env = slices.Concat(os.Environ(), settings, []string{
		"GOENV=off", // other settings of go env -w
		"GOOS=" + system, "GOARCH=" + arch, "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "GOEXPERIMENT=", "GOWORK=off", "GOFIPS140=off",
	})
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile for %s: %w\n%s", target, err, bytes.TrimSpace(out))
	}
	return nil
}
