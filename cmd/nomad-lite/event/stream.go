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
	client    apiclient.Flags
	topics    []string
	fromIndex bool
	index     uint64
	last      int
	filter    string
	json      bool
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
			o.fromIndex = cmd.Flags().Changed("index")
			switch {
			case o.last < 0:
				return cli.UsageError(cmd, errors.New("-last takes a number that is not negative"))
			case o.fromIndex && o.last > 0:
				return cli.UsageError(cmd, errors.New("-index and -last exclude each other: leave one out"))
			}
			ctx, stop := cli.ContextUntilInterrupted(cmd.Context())
			defer stop()
			return streamEvents(ctx, o, s)
		},
	}
	o.client.Register(cmd)
	cmd.Flags().StringArrayVar(&o.topics, "topic", nil, "show this `topic` only, such as Job or Job:web; may be given several times")
	cmd.Flags().Uint64Var(&o.index, "index", 0, "start with the stored events of this `index`")
	cmd.Flags().IntVar(&o.last, "last", 0, "start with the last `count` stored events")
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

// storedEventsDelay is the time without an event after which all stored events count as received. The
// agent sends them at once, and does not mark their end.
const storedEventsDelay = 300 * time.Millisecond

func streamEvents(ctx context.Context, o streamOptions, s *cli.Streams) error {
	p := &eventPrinter{o: o, streams: s, seen: map[string]*eventObject{}}
	if o.filter != "" {
		var err error
		// In a filter, a field that the event does not have is equal to "".
		if p.filter, err = bexpr.CreateEvaluator(o.filter, bexpr.WithUnknownValue("")); err != nil {
			return fmt.Errorf("-filter: %w", err)
		}
	}
	c, err := o.client.Client()
	if err != nil {
		return err
	}
	p.newestStoredIndex = newestIndex(ctx, c)
	params := url.Values{"index": {fmt.Sprint(o.index)}, "topic": o.topics}
	body, err := c.Raw().Response("/v1/event/stream?"+params.Encode(), apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapError("follow events", err)
	}

	lines, done := make(chan []byte), make(chan struct{})
	var readErr error
	var wg sync.WaitGroup
	defer wg.Wait()
	defer body.Close()
	defer close(done)
	wg.Go(func() {
		defer close(lines)
		readErr = readLines(body, lines, done)
	})

	silence := time.NewTimer(storedEventsDelay)
	defer silence.Stop()
	for {
		select {
		case line, ok := <-lines:
			switch {
			case ok:
				err = p.printBatch(line)
			case streaming.IgnoreStreamEnd(ctx, readErr) != nil:
				return errors.Join(p.printLastStored(), apiclient.WrapError("follow events", readErr))
			default:
				return p.printLastStored()
			}
			silence.Reset(storedEventsDelay)
		case <-silence.C:
			err = p.printLastStored()
		}
		if err != nil {
			return err
		}
	}
}

// newestIndex returns the index of the last change that the agent has made so far. It ignores lists that
// the client cannot read, because their events are not in the client's stream.
func newestIndex(ctx context.Context, c *api.Client) uint64 {
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

// readLines sends each line of a stream to lines, until the stream ends or done is closed.
func readLines(stream io.Reader, lines chan<- []byte, done <-chan struct{}) error {
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
	o                 streamOptions
	streams           *cli.Streams
	filter            *bexpr.Evaluator // nil matches all events
	newestStoredIndex uint64           // newer events happen while the command runs
	lastStored        []string         // the last stored events, which are not printed yet
	storedPrinted     bool             // lastStored was printed, and later events are printed at once
	seen              map[string]*eventObject
}

func (p *eventPrinter) printBatch(line []byte) error {
	var batch struct{ Events []json.RawMessage }
	if err := json.Unmarshal(line, &batch); err != nil {
		return fmt.Errorf("follow events: read %q: %w", terminal.TruncateToWidth(string(line), 80), err)
	}
	for _, text := range batch.Events {
		if err := p.printEvent(text); err != nil {
			return err
		}
	}
	return nil
}

func (p *eventPrinter) printEvent(text json.RawMessage) error {
	var e streamEvent
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("follow events: read %q: %w", terminal.TruncateToWidth(string(text), 80), err)
	}
	object := decodeObject(text)
	previous := p.remember(e, object)
	if p.filter != nil {
		if wanted, err := p.filter.Evaluate(e); err != nil {
			return fmt.Errorf("-filter: %w", err)
		} else if !wanted {
			return nil
		}
	}
	if !p.o.json && object.isProgress(previous) {
		return nil
	}
	stored := e.Index <= p.newestStoredIndex
	line := string(text) + "\n"
	if !p.o.json {
		at := time.Now()
		if stored {
			at = object.modifyTime()
		}
		line = p.format(e, at, strings.Join(object.describeChange(previous), "; "))
	}
	if stored && !p.o.fromIndex && !p.storedPrinted {
		p.lastStored = append(p.lastStored, line)
		p.lastStored = p.lastStored[max(0, len(p.lastStored)-p.o.last):]
		return nil
	}
	if err := p.printLastStored(); err != nil {
		return err
	}
	_, err := io.WriteString(p.out(), line)
	return err
}

// printLastStored prints the last stored events. Events that arrive later are printed at once, except for
// stored ones without -last.
func (p *eventPrinter) printLastStored() error {
	p.storedPrinted = p.o.last > 0
	text := strings.Join(p.lastStored, "")
	p.lastStored = nil
	_, err := io.WriteString(p.out(), text)
	return err
}

func (p *eventPrinter) out() io.Writer {
	if p.o.json {
		return p.streams.JSON()
	}
	return p.streams.Out
}

// timeWidth is the width of a time with an offset from UTC.
const timeWidth = len("2006-01-02T15:04:05-07:00")

func (p *eventPrinter) format(e streamEvent, at time.Time, change string) string {
	text := "-"
	if !at.IsZero() {
		text = output.FormatTimestamp(at)
	}
	page := output.NewPage(p.streams)
	page.Line("%-*s  %6d  %-10s  %-24s  %s", timeWidth, text, e.Index, e.Topic, e.Type, strings.TrimSpace(truncateEventKey(e.Key)+"  "+change))
	return page.Text.String()
}

// truncateEventKey shortens a key that is an id, and returns other keys as they are.
func truncateEventKey(key string) string {
	if len(key) == 36 && strings.Count(key, "-") == 4 {
		return output.TruncateID(key)
	}
	return key
}

// maxSeenObjects limits the memory of a stream that runs for months. Deleted allocations and evaluations
// have no event.
const maxSeenObjects = 1000

// remember stores the object of an event, and returns the object of the event before it, or nil.
func (p *eventPrinter) remember(e streamEvent, object *eventObject) *eventObject {
	key := strings.Join([]string{e.Topic, e.Namespace, e.Key}, "\x00")
	previous := p.seen[key]
	if previous == nil && len(p.seen) >= maxSeenObjects {
		clear(p.seen)
	}
	p.seen[key] = object
	return previous
}
