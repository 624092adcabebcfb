package main

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/builtin/mock"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// builtins are the drivers in the box. Each runs in a process of its own, like
// anybody's: this binary, started again with `plugin serve NAME`.
var builtins = map[string]func(){
	mock.Name:    func() { sdk.Serve(&mock.Driver{}) },
	rawexec.Name: func() { sdk.Serve(&rawexec.Driver{}) },
}

// newPluginServeCommand is for hosts: it serves one of the builtin drivers as a
// plugin process, and says so when a person runs it.
func newPluginServeCommand(*streams) *cobra.Command {
	return &cobra.Command{
		Use:    "serve NAME",
		Short:  "Serve a builtin driver as a plugin process",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			serve := builtins[args[0]]
			if serve == nil {
				names := slices.Sorted(maps.Keys(builtins))
				return fmt.Errorf("plugin serve: there is no builtin driver %q, only %s", args[0], strings.Join(names, ", "))
			}
			// Such a process idles beside every task: its memory counts, its speed does not.
			debug.SetGCPercent(25)
			serve()
			return nil
		},
	}
}
