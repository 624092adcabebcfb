package main

import (
	"context"
	"slices"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec/confined"
	"github.com/nomad-lite/nomad-lite/runtime/logs"
)

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
		return func() error {
			if code := confined.Serve(s.in, s.out, s.err); code != 0 {
				return &exitError{code: code}
			}
			return nil
		}
	case len(args) == 3 && args[0] == "plugin" && args[1] == "serve":
		return func() error { return servePlugin(args[2]) }
	}
	return nil
}
