package main

import (
	"context"
	"slices"

	"github.com/nomad-lite/nomad-lite/builtin/artifact"
	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec/confined"
	"github.com/nomad-lite/nomad-lite/runtime/logs"
)

// artifactDownload is the name of the process that makes one download, confined.
const artifactDownload = "artifact-download"

// jobParser is the name of the process that reads one job file for the API, with limits.
const jobParser = "job-parser"

// helper finds the process that nomad-lite starts of itself with these arguments. It is
// asked before any command is made: all commands with all their flags would be a third
// of the memory of a process that idles beside the tasks.
func helper(args []string, s *streams) func() error {
	switch {
	case slices.Equal(args, []string{"keeper"}):
		return func() error { return keeper.Serve(context.Background()) }
	case slices.Equal(args, []string{"log-collector"}):
		return func() error { return logs.Serve(context.Background()) }
	case slices.Equal(args, []string{jobParser}):
		return exitStatus(func() int { return confined.Serve(s.in, s.out, s.err) })
	case slices.Equal(args, []string{artifactDownload}):
		return exitStatus(func() int { return artifact.Download(s.in, s.err) })
	case len(args) == 3 && args[0] == "plugin" && args[1] == "serve":
		return func() error { return servePlugin(args[2]) }
	}
	return nil
}

// exitStatus is a process that has said what is wrong when its code is not 0.
func exitStatus(run func() int) func() error {
	return func() error {
		if code := run(); code != 0 {
			return &exitError{code: code}
		}
		return nil
	}
}
