package run

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// launchFlags start a job that an agent starts at certain times or on request.
type launchFlags struct {
	now         bool
	meta        []string
	payloadPath string
}

func (f *launchFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.now, "now", false, "run a periodic job once, now")
	cmd.Flags().StringArrayVar(&f.meta, "meta", nil, "metadata for a parameterized job, as `name=value`; may be repeated")
	cmd.Flags().StringVar(&f.payloadPath, "payload", "", "payload for a parameterized job: a `file`, or - for standard input")
}

// apply turns a periodic or parameterized job into one that runs now, and once.
func (f *launchFlags) apply(job *api.Job, s *cli.Streams) error {
	switch {
	case f.now && job.Periodic == nil:
		return fmt.Errorf("-now: job %q has no periodic block: leave -now out", *job.ID)
	case !job.IsParameterized() && len(f.meta) > 0:
		return fmt.Errorf("-meta: job %q has no parameterized block: set variables of the file with -var", *job.ID)
	case !job.IsParameterized() && f.payloadPath != "":
		return fmt.Errorf("-payload: job %q has no parameterized block", *job.ID)
	}
	if f.now {
		job.Periodic = nil
	}
	if !job.IsParameterized() {
		return nil
	}
	meta, err := cli.ParseKeyValues(f.meta)
	if err != nil {
		return fmt.Errorf("-meta %w", err)
	}
	request := scheduler.DispatchRequest{Meta: meta}
	if f.payloadPath != "" {
		if request.Payload, err = s.ReadPayload(f.payloadPath); err != nil {
			return err
		}
	}
	if err := scheduler.CheckDispatch(job, request); err != nil {
		return errors.New(err.Error() + dispatchAdvice(job.ParameterizedJob, request))
	}
	scheduler.ApplyDispatch(job, request)
	return nil
}

// dispatchAdvice returns the flags that a rejected dispatch lacks, in a line of its own.
func dispatchAdvice(config *api.ParameterizedJobConfig, r scheduler.DispatchRequest) string {
	var flags []string
	for _, name := range config.MetaRequired {
		if _, given := r.Meta[name]; !given {
			flags = append(flags, fmt.Sprintf("-meta %s=VALUE", name))
		}
	}
	if config.Payload == "required" && len(r.Payload) == 0 {
		flags = append(flags, "-payload FILE")
	}
	if len(flags) == 0 {
		return ""
	}
	return "\nAdd " + strings.Join(flags, " ")
}
