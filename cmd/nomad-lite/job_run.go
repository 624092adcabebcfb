package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/runtime/jobspec"
)

func newJobRunCommand(s *streams) *cobra.Command {
	var file jobFileFlags
	var output bool
	cmd := &cobra.Command{
		Use:   "run -output [flags] FILE",
		Short: "Print the JSON of a job file",
		Long: `Print the JSON of a job file, as the HTTP API takes it.

The job is printed as it was written: no default is filled in and nothing is
checked beyond its form. FILE is a path, or - for standard input.

To run a job on this machine, use 'nomad-lite run FILE'.`,
		Args: oneJobFile,
		RunE: func(_ *cobra.Command, args []string) error {
			if !output {
				return errors.New("job run submits a job to an agent, and this build has none: use 'nomad-lite run " + args[0] + "' to run the job here, or 'nomad-lite job run -output' to print its JSON")
			}
			job, err := file.read(s, args[0], 1)
			if err != nil {
				return err
			}
			return jobspec.Encode(s.out, job.job)
		},
	}
	file.register(cmd)
	cmd.Flags().BoolVar(&output, "output", false, "print the JSON of the job and do not run it")
	return cmd
}
