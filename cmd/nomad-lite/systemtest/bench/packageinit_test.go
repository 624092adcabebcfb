package bench

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// BenchmarkPackageInit measures the initialization of packages, which each process of nomad-lite does. The baseline is a program
// with the libraries that every agent needs.
func BenchmarkPackageInit(b *testing.B) {
	path, err := buildBenchBinary()
	if err != nil {
		b.Fatal(err)
	}
	baseline := exec.Command(buildGoProgram(b, idleProgramSource))
	for b.Loop() {
		took, allocated := traceInit(b, exec.Command(path, "version"))
		baselineTook, baselineAllocated := traceInit(b, exec.Command(baseline.Path))
		addBenchSample(b, "init", took, baselineTook)
		addBenchSample(b, "init, heap", allocated, baselineAllocated)
	}
}

var initLine = regexp.MustCompile(`(?m)^init \S+ @\S+ ms, (\S+) ms clock, (\d+) bytes`)

// traceInit runs a program, at most for a moment, and returns the milliseconds in which its packages are initialized, and the
// memory that they allocate, in MB.
func traceInit(b *testing.B, cmd *exec.Cmd) (milliseconds, megabytes float64) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Second)
	defer cancel()
	traced := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	traced.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace bytes.Buffer
	traced.Stderr = &trace
	_ = traced.Run() // the baseline does not end by itself
	matches := initLine.FindAllStringSubmatch(trace.String(), -1)
	if len(matches) == 0 {
		b.Fatalf("no trace of %v:\n%s", cmd, &trace)
	}
	for _, match := range matches {
		clock, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			b.Fatal(err)
		}
		size, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			b.Fatal(err)
		}
		milliseconds, megabytes = milliseconds+clock, megabytes+size/1e6
	}
	return milliseconds, megabytes
}
