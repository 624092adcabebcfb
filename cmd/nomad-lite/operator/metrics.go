package operator

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const metricsHelp = `Print the metrics of the agent, as JSON or in the text format of Prometheus.`

const metricsExamples = `  nomad-lite operator metrics -pretty
  nomad-lite operator metrics -format prometheus
  nomad-lite operator metrics -t '{{range .Gauges}}{{println .Name .Value}}{{end}}'`

type metricsOptions struct {
	clientFlags  apiclient.Flags
	formatFlags  output.FormatFlags
	indentJSON   bool
	outputFormat string
}

func newMetricsCommand(s *cli.Streams) *cobra.Command {
	var o metricsOptions
	cmd := &cobra.Command{
		Use:     "metrics [flags]",
		Short:   "Print the metrics of the agent",
		Long:    metricsHelp,
		Example: metricsExamples,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.outputFormat != "json" && o.outputFormat != "prometheus" {
				return cli.UsageError(cmd, errors.New("-format takes json or prometheus"))
			}
			return printMetrics(cmd.Context(), o, s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.indentJSON, "pretty", false, "indent the JSON")
	cmd.Flags().StringVar(&o.outputFormat, "format", "json", "`form` to print: json or prometheus")
	return cmd
}

func printMetrics(ctx context.Context, o metricsOptions, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	if o.formatFlags.IsSet() {
		summary, _, err := c.Operator().MetricsSummary(apiclient.QueryOptions(ctx, ""))
		if err != nil {
			return apiclient.WrapErrorWithAdvice("read metrics", err)
		}
		return o.formatFlags.Print(s, summary)
	}
	q := apiclient.QueryOptions(ctx, "")
	q.Params = map[string]string{}
	if o.indentJSON {
		q.Params["pretty"] = "1"
	}
	if o.outputFormat == "prometheus" {
		q.Params["format"] = o.outputFormat
	}
	metrics, err := c.Operator().Metrics(q)
	if err != nil {
		return apiclient.WrapErrorWithAdvice("read metrics", err)
	}
	out := s.JSONOutput()
	if o.outputFormat == "prometheus" {
		out = s.Out
	}
	_, err = out.Write(metrics)
	return err
}
