package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
)

const operatorMetricsHelp = `Print what the agent counts and measures, as JSON or in the form that Prometheus
reads.`

const operatorMetricsExamples = `  nomad-lite operator metrics -pretty
  nomad-lite operator metrics -format prometheus
  nomad-lite operator metrics -t '{{range .Gauges}}{{println .Name .Value}}{{end}}'`

type operatorMetricsOptions struct {
	client clientFlags
	format formatFlags
	pretty bool
	form   string
}

func newOperatorMetricsCommand(s *streams) *cobra.Command {
	var o operatorMetricsOptions
	cmd := &cobra.Command{
		Use:     "metrics [flags]",
		Short:   "Print what the agent counts and measures",
		Long:    operatorMetricsHelp,
		Example: operatorMetricsExamples,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.form != "json" && o.form != "prometheus" {
				return usageError(cmd, errors.New("-format takes json or prometheus"))
			}
			return operatorMetrics(cmd.Context(), o, s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.pretty, "pretty", false, "indent the JSON")
	cmd.Flags().StringVar(&o.form, "format", "json", "`form` to print: json or prometheus")
	return cmd
}

func operatorMetrics(ctx context.Context, o operatorMetricsOptions, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	if o.format.wanted() {
		summary, _, err := c.Operator().MetricsSummary(query(ctx, ""))
		if err != nil {
			return failed("read metrics", err)
		}
		return o.format.print(s, summary)
	}
	q := query(ctx, "")
	q.Params = map[string]string{}
	if o.pretty {
		q.Params["pretty"] = "1"
	}
	if o.form == "prometheus" {
		q.Params["format"] = o.form
	}
	metrics, err := c.Operator().Metrics(q)
	if err != nil {
		return failed("read metrics", err)
	}
	_, err = s.out.Write(metrics)
	return err
}
