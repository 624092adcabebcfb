package event

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-bexpr"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/streaming"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/taskreason"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/terminal"
)

const streamHelp = `Show what happens to jobs, allocations, nodes and all else, as it happens: one event
per line, with -json as JSON.

First come the events that the agent still has; -index leaves out those before it.

A topic is one of Job, Evaluation, Allocation, Deployment, Node, Service and
Variable, perhaps with the key of what is meant. A filter is an expression about
the event, as -json shows it.

Ctrl-C ends it. Exit codes: 0; 1 when the agent refuses, or goes.`

const streamExamples = `  nomad-lite event stream
  nomad-lite event stream -topic Job:web -topic Allocation:web
  nomad-lite event stream -filter 'Payload.Allocation.ClientStatus == "failed"'
  nomad-lite event stream -json -topic Node | jq .Payload.Node.Status`

type streamOptions struct {
	client apiclient.Flags
	topics []string
	index  uint64
	filter string
	json   bool
}

// NewCommand returns the command "event" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("event", "See what happens", newStreamCommand(s))
}

func newStreamCommand(s *cli.Streams) *cobra.Command {
	var o streamOptions
	cmd := &cobra.Command{
		Use:     "stream [flags]",
		Short:   "Show events as they happen",
		Long:    streamHelp,
		Example: streamExamples,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := cli.ContextUntilInterrupted(cmd.Context())
			defer stop()
			return streamEvents(ctx, o, s)
		},
	}
	o.client.Register(cmd)
	cmd.Flags().StringArrayVar(&o.topics, "topic", nil, "show this `topic` only, such as Job or Job:web; may be given several times")
	cmd.Flags().Uint64Var(&o.index, "index", 0, "begin with the events of this `index`")
	cmd.Flags().StringVar(&o.filter, "filter", "", "show those only for which this `expression` is true")
	cmd.Flags().BoolVar(&o.json, "json", false, "print each event as one line of JSON")
	topics := []string{"Job", "Evaluation", "Allocation", "Deployment", "Node", "Service", "Variable"}
	cli.CompleteFlag(cmd, "topic", cobra.FixedCompletions(topics, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// streamEvent is an event with all fields of the agent's answer.
type streamEvent struct {
	Topic      string
	Type       string
	Key        string
	Namespace  string
	FilterKeys []string
	Index      uint64
	Payload    map[string]any
}

func streamEvents(ctx context.Context, o streamOptions, s *cli.Streams) error {
	var filter *bexpr.Evaluator
	if o.filter != "" {
		var err error
		// In a filter, a field that the event does not have is equal to "".
		if filter, err = bexpr.CreateEvaluator(o.filter, bexpr.WithUnknownValue("")); err != nil {
			return fmt.Errorf("-filter: %w", err)
		}
	}
	c, err := o.client.Client()
	if err != nil {
		return err
	}
	params := url.Values{"index": {fmt.Sprint(o.index)}, "topic": o.topics}
	body, err := c.Raw().Response("/v1/event/stream?"+params.Encode(), apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapError("follow events", err)
	}
	defer body.Close()
	lines := bufio.NewReader(body)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			if err == io.EOF {
				err = errors.New("the agent has ended the stream")
			}
			if err = streaming.IgnoreStreamEnd(ctx, err); err != nil {
				return apiclient.WrapError("follow events", err)
			}
			return nil
		}
		var eventBatch struct{ Events []json.RawMessage }
		if err := json.Unmarshal(line, &eventBatch); err != nil {
			return fmt.Errorf("follow events: read %q: %w", terminal.TruncateToWidth(string(line), 80), err)
		}
		for _, text := range eventBatch.Events {
			if err := o.printEvent(s, filter, text); err != nil {
				return err
			}
		}
	}
}

func (o streamOptions) printEvent(s *cli.Streams, filter *bexpr.Evaluator, text json.RawMessage) error {
	var e streamEvent
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("follow events: read %q: %w", terminal.TruncateToWidth(string(text), 80), err)
	}
	if filter != nil {
		if wanted, err := filter.Evaluate(e); err != nil {
			return fmt.Errorf("-filter: %w", err)
		} else if !wanted {
			return nil
		}
	}
	if o.json {
		_, err := fmt.Fprintf(s.Out, "%s\n", text)
		return err
	}
	p := output.NewPage(s)
	p.Line("%6d  %-10s  %-24s  %s", e.Index, e.Topic, e.Type, strings.TrimSpace(truncateEventKey(e.Key)+"  "+e.summarize()))
	return output.Print(s, p)
}

// truncateEventKey shortens a key that is an id, and returns other keys as they are.
func truncateEventKey(key string) string {
	if len(key) == 36 && strings.Count(key, "-") == 4 {
		return output.TruncateID(key)
	}
	return key
}

// summarize returns a short description of the event's object.
func (e streamEvent) summarize() string {
	thing := func(name string) map[string]any { m, _ := e.Payload[name].(map[string]any); return m }
	text := func(m map[string]any, name string) string { t, _ := m[name].(string); return t }
	switch e.Topic {
	case "Job":
		j := thing("Job")
		if e.Payload["Deleted"] == true {
			return "deleted"
		}
		return fmt.Sprintf("version %v %s", j["Version"], text(j, "Status"))
	case "Allocation":
		a := thing("Allocation")
		return fmt.Sprintf("%s %s, wanted %s%s", text(a, "Name"), text(a, "ClientStatus"), text(a, "DesiredStatus"), formatNotRunningReasons(a))
	case "Evaluation":
		v := thing("Evaluation")
		return fmt.Sprintf("%s of job %s %s", text(v, "TriggeredBy"), text(v, "JobID"), text(v, "Status"))
	case "Deployment":
		d := thing("Deployment")
		return fmt.Sprintf("of job %s %s: %s", text(d, "JobID"), text(d, "Status"), text(d, "StatusDescription"))
	case "Node":
		n := thing("Node")
		return fmt.Sprintf("%s %s, %s", text(n, "Name"), text(n, "Status"), text(n, "SchedulingEligibility"))
	case "Service":
		r := thing("Service")
		port, _ := r["Port"].(float64)
		return tables.ServiceAddress(&api.ServiceRegistration{Address: text(r, "Address"), Port: int(port)})
	case "Variable":
		if e.Payload["Deleted"] == true {
			return "deleted"
		}
	}
	return ""
}

// formatNotRunningReasons returns why tasks of an allocation do not run.
func formatNotRunningReasons(alloc map[string]any) string {
	var taskStates map[string]*api.TaskState
	text, err := json.Marshal(alloc["TaskStates"])
	if err == nil {
		err = json.Unmarshal(text, &taskStates)
	}
	if err != nil {
		return "" // the agent encodes task states in another way
	}
	var notRunningReasons strings.Builder
	for _, name := range slices.Sorted(maps.Keys(taskStates)) {
		if reason := taskreason.FromTaskState(taskStates[name], time.Time{}); !reason.IsBeingSetUp() && reason.Cause != "" {
			fmt.Fprintf(&notRunningReasons, "; task %s: %s", name, reason)
		}
	}
	return notRunningReasons.String()
}
