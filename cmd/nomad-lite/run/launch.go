package run

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// runNowFlags are the flags by which a run starts periodic and parameterized jobs, which an agent would start at
// certain times or on request.
type runNowFlags struct {
	runPeriodicNow bool
	metaPairs      []string
	payloadPath    string
}

func (f *runNowFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.runPeriodicNow, "now", false, "run a periodic job once, now")
	cmd.Flags().StringArrayVar(&f.metaPairs, "meta", nil, "metadata for a parameterized job, as `name=value`; may be repeated")
	cmd.Flags().StringVar(&f.payloadPath, "payload", "", "payload for a parameterized job: a `file`, or - for standard input")
}

// newRunNowRewriter returns an runNowRewriter with the values of the flags. It reads the file of the payload.
func (f *runNowFlags) newRunNowRewriter(s *cli.Streams) (*runNowRewriter, error) {
	l := &runNowRewriter{runPeriodicNow: f.runPeriodicNow}
	var err error
	if l.dispatchRequest.Meta, err = cli.ParseKeyValues(f.metaPairs); err != nil {
		return nil, fmt.Errorf("-meta %w", err)
	}
	if f.payloadPath != "" {
		if l.dispatchRequest.Payload, err = s.ReadFileOrStdin(f.payloadPath); err != nil {
			return nil, err
		}
	}
	l.hasPayload = f.payloadPath != ""
	return l, nil
}

// runNowRewriter changes periodic and parameterized jobs so that they run once and at once.
type runNowRewriter struct {
	runPeriodicNow  bool
	hasPayload      bool
	dispatchRequest scheduler.DispatchRequest

	sawPeriodicJob, sawParameterizedJob bool // whether makeRunnableNow was called with such a job
}

// makeRunnableNow removes the periodic block of a job if -now is set, and dispatches a parameterized job. It returns
// an error with advice if the flags do not suit the job's parameterized block.
func (l *runNowRewriter) makeRunnableNow(job *api.Job) error {
	if l.runPeriodicNow && job.Periodic != nil {
		l.sawPeriodicJob = true
		job.Periodic = nil
	}
	if !job.IsParameterized() {
		return nil
	}
	l.sawParameterizedJob = true
	if err := scheduler.CheckDispatch(job, model.JobLimits{}, l.dispatchRequest); err != nil {
		return errors.New(err.Error() + l.adviseMissingDispatchFlags(job.ParameterizedJob))
	}
	scheduler.SetDispatchPayloadAndMeta(job, l.dispatchRequest)
	return nil
}

// rejectUnusedFlags rejects flags that apply to none of the jobs for which makeRunnableNow was called.
func (l *runNowRewriter) rejectUnusedFlags() error {
	switch {
	case l.runPeriodicNow && !l.sawPeriodicJob:
		return errors.New("-now: there is no job with a periodic block: leave -now out")
	case len(l.dispatchRequest.Meta) > 0 && !l.sawParameterizedJob:
		return errors.New("-meta: there is no job with a parameterized block: set variables of the file with -var")
	case l.hasPayload && !l.sawParameterizedJob:
		return errors.New("-payload: there is no job with a parameterized block: leave -payload out")
	}
	return nil
}

// adviseMissingDispatchFlags returns the flags that a parameterized job requires and that were not given, as a line of
// advice.
func (l *runNowRewriter) adviseMissingDispatchFlags(config *api.ParameterizedJobConfig) string {
	var flags []string
	for _, name := range config.MetaRequired {
		if _, given := l.dispatchRequest.Meta[name]; !given {
			flags = append(flags, fmt.Sprintf("-meta %s=VALUE", name))
		}
	}
	if config.Payload == "required" && len(l.dispatchRequest.Payload) == 0 {
		flags = append(flags, "-payload FILE")
	}
	if len(flags) == 0 {
		return ""
	}
	return "\nAdd " + strings.Join(flags, " ")
}
