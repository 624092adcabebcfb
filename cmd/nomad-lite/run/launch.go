package run

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// launchFlags start jobs that an agent starts at certain times or on request.
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

// newLauncher returns a launcher with the values of the flags. It reads the payload.
func (f *launchFlags) newLauncher(s *cli.Streams) (*launcher, error) {
	l := &launcher{now: f.now}
	var err error
	if l.request.Meta, err = cli.ParseKeyValues(f.meta); err != nil {
		return nil, fmt.Errorf("-meta %w", err)
	}
	if f.payloadPath != "" {
		if l.request.Payload, err = s.ReadPayload(f.payloadPath); err != nil {
			return nil, err
		}
	}
	l.hasPayload = f.payloadPath != ""
	return l, nil
}

// launcher turns periodic and parameterized jobs into jobs that run now, and once.
type launcher struct {
	now        bool
	hasPayload bool
	request    scheduler.DispatchRequest

	foundPeriodic, foundParameterized bool // jobs of these kinds were launched
}

// launch removes the periodic block of a job if -now is set, and dispatches a parameterized job. It returns
// an error with advice if the flags do not suit the job's parameterized block.
func (l *launcher) launch(job *api.Job) error {
	if l.now && job.Periodic != nil {
		l.foundPeriodic = true
		job.Periodic = nil
	}
	if !job.IsParameterized() {
		return nil
	}
	l.foundParameterized = true
	if err := scheduler.CheckDispatch(job, l.request); err != nil {
		return errors.New(err.Error() + l.dispatchAdvice(job.ParameterizedJob))
	}
	scheduler.ApplyDispatch(job, l.request)
	return nil
}

// checkUsed rejects flags that concern none of the jobs that were launched.
func (l *launcher) checkUsed() error {
	switch {
	case l.now && !l.foundPeriodic:
		return errors.New("-now: there is no job with a periodic block: leave -now out")
	case len(l.request.Meta) > 0 && !l.foundParameterized:
		return errors.New("-meta: there is no job with a parameterized block: set variables of the file with -var")
	case l.hasPayload && !l.foundParameterized:
		return errors.New("-payload: there is no job with a parameterized block: leave -payload out")
	}
	return nil
}

// dispatchAdvice returns the flags that a rejected dispatch lacks, in a line of its own.
func (l *launcher) dispatchAdvice(config *api.ParameterizedJobConfig) string {
	var flags []string
	for _, name := range config.MetaRequired {
		if _, given := l.request.Meta[name]; !given {
			flags = append(flags, fmt.Sprintf("-meta %s=VALUE", name))
		}
	}
	if config.Payload == "required" && len(l.request.Payload) == 0 {
		flags = append(flags, "-payload FILE")
	}
	if len(flags) == 0 {
		return ""
	}
	return "\nAdd " + strings.Join(flags, " ")
}
