package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	programPackage = "github.com/nomad-lite/nomad-lite/cmd/nomad-lite"
	versionPackage = programPackage + "/version"
)

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
	cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "GOEXPERIMENT=", "GOWORK=off", "GOFIPS140=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile for %s: %w\n%s", target, err, bytes.TrimSpace(out))
	}
	return nil
}
