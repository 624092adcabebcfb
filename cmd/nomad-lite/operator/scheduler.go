package operator

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const setSchedulerConfigHelp = `Change the scheduler configuration. A setting without a flag keeps its value.

An agent of nomad-lite changes -memory-oversubscription only, and refuses other
values of the other settings by name: they select among the nodes of a cluster.
With memory oversubscription a task can use the memory_max of its resources
block; the scheduler still reserves memory. Allocations that run keep their limits.`

func newSchedulerCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("scheduler", "Show or change the scheduler configuration",
		newGetSchedulerConfigCommand(s), newSetSchedulerConfigCommand(s))
}

func newGetSchedulerConfigCommand(s *cli.Streams) *cobra.Command {
	var client apiclient.Flags
	var format output.FormatFlags
	cmd := &cobra.Command{
		Use:               "get-config [flags]",
		Short:             "Show the scheduler configuration",
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client.Client()
			if err != nil {
				return err
			}
			answer, err := readSchedulerConfig(cmd.Context(), c)
			if err != nil {
				return err
			}
			return format.PrintValueOrPage(s, answer, func(p *output.Page) { printSchedulerConfig(p, answer.SchedulerConfig) })
		},
	}
	client.Register(cmd)
	format.Register(cmd)
	return cmd
}

func readSchedulerConfig(ctx context.Context, c *api.Client) (*api.SchedulerConfigurationResponse, error) {
	answer, _, err := c.Operator().SchedulerGetConfiguration(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return nil, apiclient.WrapErrorWithAdvice("read the scheduler configuration", err)
	}
	if answer.SchedulerConfig == nil {
		return nil, errors.New("read the scheduler configuration: the answer has none")
	}
	return answer, nil
}

// printSchedulerConfig adds the scheduler configuration in Nomad's format.
func printSchedulerConfig(p *output.Page, c *api.SchedulerConfiguration) {
	p.AddPairs(output.Pairs{
		{"Scheduler Algorithm", string(c.SchedulerAlgorithm)},
		{"Memory Oversubscription", c.MemoryOversubscriptionEnabled},
		{"Reject Job Registration", c.RejectJobRegistration},
		{"Pause Eval Broker", c.PauseEvalBroker},
		{"Preemption System Scheduler", c.PreemptionConfig.SystemSchedulerEnabled},
		{"Preemption Service Scheduler", c.PreemptionConfig.ServiceSchedulerEnabled},
		{"Preemption Batch Scheduler", c.PreemptionConfig.BatchSchedulerEnabled},
		{"Preemption SysBatch Scheduler", c.PreemptionConfig.SysBatchSchedulerEnabled},
		{"Node Limit For Feasibility Checks", c.NodeLimitForFeasibilityChecks},
		{"Modify Index", c.ModifyIndex},
	})
}

type setSchedulerConfigOptions struct {
	clientFlags apiclient.Flags
	checkIndex  uint64
	algorithm   string
	flagValues  api.SchedulerConfiguration // the values of the flags that set a configuration value
}

func newSetSchedulerConfigCommand(s *cli.Streams) *cobra.Command {
	var o setSchedulerConfigOptions
	cmd := &cobra.Command{
		Use:   "set-config [flags]",
		Short: "Change the scheduler configuration",
		Long:  setSchedulerConfigHelp,
		Example: `  nomad-lite operator scheduler set-config -memory-oversubscription=true
  nomad-lite operator scheduler set-config -check-index 12 -memory-oversubscription=false`,
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.flagValues.SchedulerAlgorithm = api.SchedulerAlgorithm(o.algorithm)
			return setSchedulerConfig(cmd, o, s)
		},
	}
	o.clientFlags.Register(cmd)
	flags := cmd.Flags()
	flags.Uint64Var(&o.checkIndex, "check-index", 0, "change it only if its modify `index` is this one")
	flags.StringVar(&o.algorithm, "scheduler-algorithm", "", "`name` of the algorithm: binpack or spread")
	flags.BoolVar(&o.flagValues.MemoryOversubscriptionEnabled, "memory-oversubscription", false, "let tasks use memory_max")
	flags.BoolVar(&o.flagValues.RejectJobRegistration, "reject-job-registration", false, "accept no jobs")
	flags.BoolVar(&o.flagValues.PauseEvalBroker, "pause-eval-broker", false, "process no evaluations")
	flags.BoolVar(&o.flagValues.PreemptionConfig.SystemSchedulerEnabled, "preempt-system-scheduler", false, "let system jobs stop others")
	flags.BoolVar(&o.flagValues.PreemptionConfig.ServiceSchedulerEnabled, "preempt-service-scheduler", false, "let service jobs stop others")
	flags.BoolVar(&o.flagValues.PreemptionConfig.BatchSchedulerEnabled, "preempt-batch-scheduler", false, "let batch jobs stop others")
	flags.BoolVar(&o.flagValues.PreemptionConfig.SysBatchSchedulerEnabled, "preempt-sysbatch-scheduler", false, "let sysbatch jobs stop others")
	flags.UintVar(&o.flagValues.NodeLimitForFeasibilityChecks, "node-limit-for-feasibility-checks", 0, "`count` of nodes to consider for a spread or an affinity")
	return cmd
}

func setSchedulerConfig(cmd *cobra.Command, o setSchedulerConfigOptions, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	answer, err := readSchedulerConfig(cmd.Context(), c)
	if err != nil {
		return err
	}
	next := answer.SchedulerConfig
	for flag, take := range map[string]func(){
		"scheduler-algorithm":     func() { next.SchedulerAlgorithm = o.flagValues.SchedulerAlgorithm },
		"memory-oversubscription": func() { next.MemoryOversubscriptionEnabled = o.flagValues.MemoryOversubscriptionEnabled },
		"reject-job-registration": func() { next.RejectJobRegistration = o.flagValues.RejectJobRegistration },
		"pause-eval-broker":       func() { next.PauseEvalBroker = o.flagValues.PauseEvalBroker },
		"preempt-system-scheduler": func() {
			next.PreemptionConfig.SystemSchedulerEnabled = o.flagValues.PreemptionConfig.SystemSchedulerEnabled
		},
		"preempt-service-scheduler": func() {
			next.PreemptionConfig.ServiceSchedulerEnabled = o.flagValues.PreemptionConfig.ServiceSchedulerEnabled
		},
		"preempt-batch-scheduler": func() {
			next.PreemptionConfig.BatchSchedulerEnabled = o.flagValues.PreemptionConfig.BatchSchedulerEnabled
		},
		"preempt-sysbatch-scheduler": func() {
			next.PreemptionConfig.SysBatchSchedulerEnabled = o.flagValues.PreemptionConfig.SysBatchSchedulerEnabled
		},
		"node-limit-for-feasibility-checks": func() { next.NodeLimitForFeasibilityChecks = o.flagValues.NodeLimitForFeasibilityChecks },
		"check-index":                       func() { next.ModifyIndex = o.checkIndex },
	} {
		if cmd.Flags().Changed(flag) {
			take()
		}
	}
	// The request contains the modify index of the configuration that was read. If another client has changed the
	// configuration since, the agent rejects the request.
	result, _, err := c.Operator().SchedulerCASConfiguration(next, apiclient.WriteOptions(cmd.Context(), ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("change the scheduler configuration", err)
	}
	if !result.Updated {
		return errors.New("the scheduler configuration has changed and has another modify index: see 'nomad-lite operator scheduler get-config', and try again")
	}
	_, err = s.Out.Write([]byte("Scheduler configuration updated!\n"))
	return err
}
