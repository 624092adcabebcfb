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

// helper returns the helper process of nomad-lite that these arguments start, or nil. It is
// called before any command is constructed: all commands with all their flags would be a
// third of the memory of a process that idles beside the tasks.
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

// exitStatus turns a helper into a command. A helper that returns a code other than 0 has
// printed the reason.
func exitStatus(run func() int) func() error {
	return func() error {
		if code := run(); code != 0 {
			return &exitError{code: code}
		}
		return nil
	}
}
