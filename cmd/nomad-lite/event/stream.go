package event

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-bexpr"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/streaming"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

const streamHelp = `Show changes of jobs, allocations, nodes and other objects as they happen: one
line per event with its time, its index, the object and what changed, or with
-json one line of JSON.

The stream starts now. The agent stores the latest events: -last shows some of
them first, -index all of them from an index on. The time of a stored event is
the time in its object; "-" if the object has none, as jobs and services.

A topic is one of Job, Evaluation, Allocation, Deployment, Node, Service and
Variable, or a topic and the key of an object. A filter is an expression about
the event, as -json shows it.

Ctrl-C ends the command. Exit codes: 0; 1 when the agent rejects the request or
ends the stream.`

const streamExamples = `  nomad-lite event stream
  nomad-lite event stream -last 20 -topic Job:web -topic Allocation:web
  nomad-lite event stream -filter 'Payload.Allocation.ClientStatus == "failed"'
  nomad-lite event stream -json -topic Node | jq .Payload.Node.Status`

type streamOptions struct {
	clientFlags          apiclient.Flags
	topics               []string
	hasIndexFlag         bool
	startIndex           uint64
	lastStoredEventCount int
	filter               string
	printJSON            bool
}

// NewCommand returns the command "event" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("event", "Stream events", newStreamCommand(s))
}

func newStreamCommand(s *cli.Streams) *cobra.Command {
	var o streamOptions
	cmd := &cobra.Command{
		Use:     "stream [flags]",
		Short:   "Stream events",
		Long:    streamHelp,
		Example: streamExamples,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.hasIndexFlag = cmd.Flags().Changed("index")
			switch {
			case o.lastStoredEventCount < 0:
				return cli.UsageError(cmd, errors.New("-last takes a number that is not negative"))
			case o.hasIndexFlag && o.lastStoredEventCount > 0:
				return cli.UsageError(cmd, errors.New("-index and -last exclude each other: leave one out"))
			}
			ctx, stop := cli.ContextUntilInterrupted(cmd.Context())
			defer stop()
			return streamEvents(ctx, o, s)
		},
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().StringArrayVar(&o.topics, "topic", nil, "show this `topic` only, such as Job or Job:web; may be given several times")
	cmd.Flags().Uint64Var(&o.startIndex, "index", 0, "start with the stored events of this `index`")
	cmd.Flags().IntVar(&o.lastStoredEventCount, "last", 0, "start with the last `count` stored events")
	cmd.Flags().StringVar(&o.filter, "filter", "", "show those only for which this `expression` is true")
	cmd.Flags().BoolVar(&o.printJSON, "json", false, "print each event as one line of JSON")
	topics := []string{"Job", "Evaluation", "Allocation", "Deployment", "Node", "Service", "Variable"}
	cli.MustSetFlagCompletion(cmd, "topic", cobra.FixedCompletions(topics, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// streamEvent is an event as the agent sends it. A filter can use all of its fields.
type streamEvent struct {
	Topic      string
	Type       string
	Key        string
	Namespace  string
	FilterKeys []string
	Index      uint64
	Payload    map[string]any
}

// storedEventsDelay is the time without an event after which all stored events count as received: the
// agent sends the stored events at once, and does not mark the last one.
const storedEventsDelay = 300 * time.Millisecond

func streamEvents(ctx context.Context, o streamOptions, s *cli.Streams) error {
	p := &eventPrinter{options: o, streams: s, lastObjectByKey: map[string]*eventObject{}}
	if o.filter != "" {
		var err error
		// In a filter, a field that the event does not have is equal to "".
		if p.filter, err = bexpr.CreateEvaluator(o.filter, bexpr.WithUnknownValue("")); err != nil {
			return fmt.Errorf("-filter: %w", err)
		}
	}
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	p.newestIndexAtStart = newestChangeIndex(ctx, c)
	params := url.Values{"index": {fmt.Sprint(o.startIndex)}, "topic": o.topics}
	body, err := c.Raw().Response("/v1/event/stream?"+params.Encode(), apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("follow events", err)
	}

	lines, done := make(chan []byte), make(chan struct{})
	var readErr error
	var wg sync.WaitGroup
	defer wg.Wait()
	defer body.Close()
	defer close(done)
	wg.Go(func() {
		defer close(lines)
		readErr = sendLinesUntilDone(body, lines, done)
	})

	silence := time.NewTimer(storedEventsDelay)
	defer silence.Stop()
	for {
		select {
		case line, ok := <-lines:
			switch {
			case ok:
				err = p.printEventBatch(line)
			case streaming.IgnoreStreamEnd(ctx, readErr) != nil:
				return errors.Join(p.printLastStoredEvents(), apiclient.WrapErrorWithAdvice("follow events", readErr))
			default:
				return p.printLastStoredEvents()
			}
			silence.Reset(storedEventsDelay)
		case <-silence.C:
			err = p.printLastStoredEvents()
		}
		if err != nil {
			return err
		}
	}
}

// newestChangeIndex returns the index of the latest change of any object. It ignores kinds of objects that
// the client cannot list, because the client's stream has no events for them.
func newestChangeIndex(ctx context.Context, c *api.Client) uint64 {
	newest := uint64(0)
	for _, list := range []string{"jobs", "evaluations", "allocations", "deployments", "nodes", "services", "vars"} {
		q := apiclient.QueryOptions(ctx, "")
		q.PerPage = 1
		var page json.RawMessage
		if meta, err := c.Raw().Query("/v1/"+list, &page, q); err == nil {
			newest = max(newest, meta.LastIndex)
		}
	}
	return newest
}

// sendLinesUntilDone sends each line of a stream to lines, until the stream ends or done is closed.
func sendLinesUntilDone(stream io.Reader, lines chan<- []byte, done <-chan struct{}) error {
	r := bufio.NewReader(stream)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return errors.New("the agent has ended the stream")
		}
		if err != nil {
			return err
		}
		select {
		case lines <- line:
		case <-done:
			return nil
		}
	}
}

// eventPrinter prints the events of a stream.
type eventPrinter struct {
	options                 streamOptions
	streams                 *cli.Streams
	filter                  *bexpr.Evaluator // nil selects all events
	newestIndexAtStart      uint64           // events with a higher index have happened after the start of the command
	unprintedStoredLines    []string         // lines of the last stored events, which are printed when all stored events are received
	printsLaterStoredEvents bool             // with -last, the last stored events were printed, so further stored events are printed at once
	lastObjectByKey         map[string]*eventObject
}

func (p *eventPrinter) printEventBatch(jsonLine []byte) error {
	var batch struct{ Events []json.RawMessage }
	if err := json.Unmarshal(jsonLine, &batch); err != nil {
		return fmt.Errorf("follow events: read %q: %w", terminal.TruncateToWidth(string(jsonLine), 80), err)
	}
	for _, text := range batch.Events {
		if err := p.printOrBufferEvent(text); err != nil {
			return err
		}
	}
	return nil
}

func (p *eventPrinter) printOrBufferEvent(eventJSON json.RawMessage) error {
	var e streamEvent
	if err := json.Unmarshal(eventJSON, &e); err != nil {
		return fmt.Errorf("follow events: read %q: %w", terminal.TruncateToWidth(string(eventJSON), 80), err)
	}
	object := decodeEventObjectOrEmpty(eventJSON)
	previous := p.swapLastObject(e, object)
	if p.filter != nil {
		if wanted, err := p.filter.Evaluate(e); err != nil {
			return fmt.Errorf("-filter: %w", err)
		} else if !wanted {
			return nil
		}
	}
	if !p.options.printJSON && object.changesOnlyTaskEventProgress(previous) {
		return nil
	}
	stored := e.Index <= p.newestIndexAtStart
	line := string(eventJSON) + "\n"
	if !p.options.printJSON {
		at := time.Now()
		if stored {
			at = object.modifyTime()
		}
		line = p.formatLine(e, at, strings.Join(object.describeChange(previous), "; "))
	}
	if stored && !p.options.hasIndexFlag && !p.printsLaterStoredEvents {
		p.unprintedStoredLines = append(p.unprintedStoredLines, line)
		p.unprintedStoredLines = p.unprintedStoredLines[max(0, len(p.unprintedStoredLines)-p.options.lastStoredEventCount):]
		return nil
	}
	if err := p.printLastStoredEvents(); err != nil {
		return err
	}
	_, err := io.WriteString(p.outputWriter(), line)
	return err
}

// printLastStoredEvents prints the lines in unprintedStoredLines. Stored events that arrive later are printed at once
// with -last, and not at all without it.
func (p *eventPrinter) printLastStoredEvents() error {
	p.printsLaterStoredEvents = p.options.lastStoredEventCount > 0
	text := strings.Join(p.unprintedStoredLines, "")
	p.unprintedStoredLines = nil
	_, err := io.WriteString(p.outputWriter(), text)
	return err
}

func (p *eventPrinter) outputWriter() io.Writer {
	if p.options.printJSON {
		return p.streams.JSONOutput()
	}
	return p.streams.Out
}

// timeWidth is the number of columns of a timestamp.
const timeWidth = len("2006-01-02T15:04:05-07:00")

// formatLine returns the line for an event. A zero eventTime is shown as "-".
func (p *eventPrinter) formatLine(e streamEvent, eventTime time.Time, change string) string {
	text := "-"
	if !eventTime.IsZero() {
		text = output.FormatTimestamp(eventTime)
	}
	page := output.NewPage(p.streams)
	page.AddLine("%-*s  %6d  %-10s  %-24s  %s", timeWidth, text, e.Index, e.Topic, e.Type, strings.TrimSpace(truncateKeyIfUUID(e.Key)+"  "+change))
	return page.Text.String()
}

// truncateKeyIfUUID truncates a key that is a UUID, and returns any other key unchanged.
func truncateKeyIfUUID(key string) string {
	if len(key) == 36 && strings.Count(key, "-") == 4 {
		return output.TruncateID(key)
	}
	return key
}

// maxLastObjects is the maximum length of lastObjectByKey, which would otherwise grow without limit: there is no event
// for the deletion of allocations and evaluations.
const maxLastObjects = 1000

// swapLastObject stores the object of an event in lastObjectByKey, and returns the previous version of the object, or
// nil if that is unknown.
func (p *eventPrinter) swapLastObject(e streamEvent, object *eventObject) *eventObject {
	key := strings.Join([]string{e.Topic, e.Namespace, e.Key}, "\x00")
	previous := p.lastObjectByKey[key]
	if previous == nil && len(p.lastObjectByKey) >= maxLastObjects {
		clear(p.lastObjectByKey)
	}
	p.lastObjectByKey[key] = object
	return previous
}
