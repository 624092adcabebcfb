package operator

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/version"
)

const debugHelp = `Collect a debug bundle: the configuration and the metrics of the agent, its jobs,
evaluations, deployments, allocations, nodes and services every -interval, its log and
its events, and profiles if its configuration has enable_debug = true.

After -duration, or at Ctrl-C, the command writes the archive nomad-debug-TIME.tar.gz
in the current directory, or, with -output, a directory of that name in another
directory. Files that could not be captured are printed and listed in index.json.

The bundle contains names and the log of the agent. It contains no variables, no
output of tasks and no job files, except in the events of jobs (-event-topic). Read the
bundle before you publish it.

Exit codes: 0, or 1 when the agent cannot be reached or nothing can be written.`

type debugOptions struct {
	clientFlags         apiclient.Flags
	captureDuration     time.Duration
	captureInterval     time.Duration
	profileDuration     time.Duration
	logLevel            string
	logSourceLocation   bool
	eventTopics         string
	firstEventIndex     uint64
	maxNodes            int
	nodeIDPrefixes      string
	unarchivedOutputDir string
}

func newDebugCommand(s *cli.Streams) *cobra.Command {
	var o debugOptions
	cmd := &cobra.Command{
		Use:   "debug [flags]",
		Short: "Collect a debug bundle",
		Long:  debugHelp,
		Example: `  nomad-lite operator debug
  nomad-lite operator debug -duration 10s -interval 2s -event-topic Job:web,Allocation`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.captureDuration < 0 || o.captureInterval <= 0 || o.profileDuration < 0 {
				return cli.UsageError(cmd, errors.New("-duration, -pprof-duration and -interval take a time; -interval may not be zero"))
			}
			ctx, stop := cli.ContextUntilInterrupted(cmd.Context())
			defer stop()
			return captureDebugBundle(ctx, o, s)
		},
	}
	o.clientFlags.Register(cmd)
	f := cmd.Flags()
	f.DurationVar(&o.captureDuration, "duration", 2*time.Minute, "how `long` to capture")
	f.DurationVar(&o.captureInterval, "interval", 30*time.Second, "capture what there is each `time`")
	f.DurationVar(&o.profileDuration, "pprof-duration", time.Second, "how `long` to look at what the processors do")
	f.StringVar(&o.logLevel, "log-level", "DEBUG", "`level` to log at: TRACE, DEBUG, INFO, WARN or ERROR")
	f.BoolVar(&o.logSourceLocation, "log-include-location", false, "say where in the program each line of the log comes from")
	f.StringVar(&o.eventTopics, "event-topic", "none", "`topics` of events, with commas, such as Job:web,Allocation; all or none")
	f.Uint64Var(&o.firstEventIndex, "event-index", 0, "begin with the events of this `index`")
	f.IntVar(&o.maxNodes, "max-nodes", 10, "capture at most so `many` nodes; 0 means all")
	f.StringVar(&o.nodeIDPrefixes, "node-id", "all", "capture only the nodes whose ids begin with one of these `ids`, with commas")
	f.StringVar(&o.unarchivedOutputDir, "output", "", "make a directory in this `directory`, and no archive")
	return cmd
}

// captureRequest is an API request whose response is saved in a file of the debug bundle.
type captureRequest struct{ fileName, apiPath string }

var (
	agentCaptureRequests = []captureRequest{
		{"agent/self.json", "/v1/agent/self"},
		{"agent/members.json", "/v1/agent/members"},
		{"agent/health.json", "/v1/agent/health"},
		{"agent/host.json", "/v1/agent/host"},
	}
	profileCaptureRequests = []captureRequest{
		{"pprof/goroutine.txt", "/v1/agent/pprof/goroutine?debug=2"},
		{"pprof/heap.prof", "/v1/agent/pprof/heap"},
		{"pprof/allocs.prof", "/v1/agent/pprof/allocs"},
		{"pprof/threadcreate.prof", "/v1/agent/pprof/threadcreate"},
		{"pprof/profile.prof", "/v1/agent/pprof/profile?seconds=SECONDS"},
		{"pprof/trace.prof", "/v1/agent/pprof/trace?seconds=SECONDS"},
	}
	stateCaptureRequests = []captureRequest{
		{"metrics.json", "/v1/metrics"},
		{"jobs.json", "/v1/jobs?namespace=*"},
		{"evaluations.json", "/v1/evaluations?namespace=*"},
		{"deployments.json", "/v1/deployments?namespace=*"},
		{"allocations.json", "/v1/allocations?namespace=*&resources=true"},
		{"transitions.json", "/v1/client/transitions?namespace=*"},
		{"services.json", "/v1/services?namespace=*"},
		{"nodes.json", "/v1/nodes?resources=true"},
		{"namespaces.json", "/v1/namespaces"},
		{"plugins.json", "/v1/plugins?type=csi"},
		{"volumes.json", "/v1/volumes?type=csi&namespace=*"},
	}
	nodeCaptureRequests = []captureRequest{
		{"node.json", "/v1/node/ID"},
		{"stats.json", "/v1/client/stats?node_id=ID"},
	}
)

// debugCapture saves responses of an agent in the files of a directory.
type debugCapture struct {
	client    *api.Client
	bundleDir *os.Root

	mu           sync.Mutex
	errorsByFile map[string]string // file name -> why the file is missing or incomplete
}

func captureDebugBundle(ctx context.Context, o debugOptions, s *cli.Streams) (err error) {
	client, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	self, err := client.Agent().Self()
	if err != nil {
		return apiclient.WrapErrorWithAdvice("ask the agent who it is", err)
	}
	name := "nomad-debug-" + time.Now().UTC().Format("2006-01-02-150405Z")
	parent, result := o.unarchivedOutputDir, filepath.Join(o.unarchivedOutputDir, name)
	if o.unarchivedOutputDir == "" {
		// The archive is created first, so that a missing permission is reported before the
		// capture.
		result = name + ".tar.gz"
		archive, err := os.OpenFile(result, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("make the archive: %w", err)
		}
		if parent, err = os.MkdirTemp("", "nomad-debug-"); err != nil {
			return errors.Join(err, archive.Close(), os.Remove(result))
		}
		defer func() {
			if err == nil {
				err = writeTarGz(archive, parent)
			}
			err = errors.Join(err, archive.Close(), os.RemoveAll(parent))
			if err != nil {
				err = errors.Join(err, os.Remove(result))
				return
			}
			_, err = fmt.Fprintf(s.Out, "Created debug archive: %s\n", result)
		}()
	}
	directory := filepath.Join(parent, name)
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	dir, err := os.OpenRoot(directory)
	if err != nil {
		return err
	}
	defer dir.Close()
	c := &debugCapture{client: client, bundleDir: dir, errorsByFile: make(map[string]string)}
	nodeIDs, nodeCount := c.selectNodes(ctx, o)
	// These lines are Nomad's, and scripts parse them.
	if _, err := fmt.Fprintf(s.Out, "Starting debugger...\n\n"+strings.Repeat("%17s: %v\n", 8)+"\nCapturing cluster data...\n",
		"Nomad CLI Version", "nomad-lite "+version.String(), "Region", o.clientFlags.ClientConfig().Region, "Namespace", o.clientFlags.ClientConfig().Namespace,
		"Servers", fmt.Sprintf("(1/1) [%s]", self.Member.Name), "Clients", fmt.Sprintf("(%d/%d) %v", len(nodeIDs), nodeCount, nodeIDs),
		"Interval", o.captureInterval, "Duration", o.captureDuration, "pprof Interval", "<none>"); err != nil {
		return err
	}
	begun := time.Now().UTC()
	c.captureForDuration(ctx, o, nodeIDs)
	index := map[string]any{
		"Captured": begun, "Took": time.Since(begun).Round(time.Millisecond).String(), "By": "nomad-lite " + version.String(),
		"Agent": o.clientFlags.ClientConfig().Address, "Interval": o.captureInterval.String(), "Missing": c.errorsByFile,
	}
	text, err := json.MarshalIndent(index, "", "    ")
	if err != nil {
		return err
	}
	if err := dir.WriteFile("index.json", append(text, '\n'), 0o600); err != nil {
		return err
	}
	c.printErrors(s)
	if o.unarchivedOutputDir != "" {
		_, err = fmt.Fprintf(s.Out, "Created debug directory: %s\n", result)
	}
	return err
}

// captureForDuration saves the responses of all requests. It repeats stateCaptureRequests each interval, until the
// duration has passed or ctx ends.
func (c *debugCapture) captureForDuration(ctx context.Context, o debugOptions, nodeIDs []string) {
	during, stop := context.WithTimeout(ctx, o.captureDuration)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	log := url.Values{"plain": {"true"}, "log_level": {o.logLevel}, "log_include_location": {fmt.Sprint(o.logSourceLocation)}}
	wg.Go(func() {
		c.saveResponse(during, captureRequest{"agent/monitor.log", "/v1/agent/monitor?" + log.Encode()})
	})
	if o.eventTopics != "none" {
		events := url.Values{"index": {fmt.Sprint(o.firstEventIndex)}, "namespace": {"*"}}
		if o.eventTopics != "all" {
			events["topic"] = strings.Split(o.eventTopics, ",")
		}
		wg.Go(func() { c.saveResponse(during, captureRequest{"events.json", "/v1/event/stream?" + events.Encode()}) })
	}
	seconds := max(1, int(o.profileDuration.Round(time.Second).Seconds()))
	wg.Go(func() { c.saveResponses(ctx, profileCaptureRequests, "", "SECONDS", fmt.Sprint(seconds)) })
	c.saveResponses(ctx, agentCaptureRequests, "", "", "")
	for _, id := range nodeIDs {
		c.saveResponses(ctx, nodeCaptureRequests, "nodes/"+id, "ID", id)
	}
	ticker := time.NewTicker(o.captureInterval)
	defer ticker.Stop()
	for i := 0; ; i++ {
		c.saveResponses(ctx, stateCaptureRequests, fmt.Sprintf("state/%04d", i), "", "")
		select {
		case <-ticker.C:
		case <-during.Done():
			return
		}
	}
}

// selectNodes returns the ids of the nodes to capture, and the number of all nodes.
func (c *debugCapture) selectNodes(ctx context.Context, o debugOptions) (ids []string, totalNodes int) {
	nodes, _, err := c.client.Nodes().List(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		c.recordError("nodes", err)
		return nil, 0
	}
	wanted := strings.Split(o.nodeIDPrefixes, ",")
	for _, n := range nodes {
		if slices.ContainsFunc(wanted, func(prefix string) bool { return prefix == "all" || strings.HasPrefix(n.ID, prefix) }) {
			ids = append(ids, n.ID)
		}
	}
	if o.maxNodes > 0 && len(ids) > o.maxNodes {
		ids = ids[:o.maxNodes]
	}
	return ids, len(nodes)
}

// saveResponses saves the response to each request in a file below dir. In the API paths, value replaces the
// name of the variable; the variable is empty for paths without one.
func (c *debugCapture) saveResponses(ctx context.Context, all []captureRequest, dir, variable, value string) {
	for _, r := range all {
		if variable != "" {
			r.apiPath = strings.ReplaceAll(r.apiPath, variable, url.PathEscape(value))
		}
		c.saveResponse(ctx, captureRequest{filepath.Join(dir, r.fileName), r.apiPath})
	}
}

// saveResponse saves the response to one request. A stream that the end of ctx cuts off counts as complete.
func (c *debugCapture) saveResponse(ctx context.Context, r captureRequest) {
	if ctx.Err() != nil {
		return
	}
	err := c.writeResponse(ctx, r)
	if err != nil && ctx.Err() == nil {
		c.recordError(r.fileName, err)
	}
}

func (c *debugCapture) writeResponse(ctx context.Context, r captureRequest) (err error) {
	body, err := c.client.Raw().Response(r.apiPath, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return err
	}
	defer body.Close()
	if err := c.bundleDir.MkdirAll(filepath.Dir(r.fileName), 0o700); err != nil {
		return err
	}
	f, err := c.bundleDir.OpenFile(r.fileName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Close())
}

func (c *debugCapture) recordError(fileName string, err error) {
	text := err.Error()
	if answer := new(api.UnexpectedResponseError); errors.As(err, answer) {
		text = cmp.Or(strings.TrimSpace(answer.Body()), answer.StatusText(), text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errorsByFile[fileName] = text
}

// printErrors prints the names of the files that were not captured, in one line for each reason.
func (c *debugCapture) printErrors(s *cli.Streams) {
	files := make(map[string][]string)
	for _, file := range slices.Sorted(maps.Keys(c.errorsByFile)) {
		files[c.errorsByFile[file]] = append(files[c.errorsByFile[file]], file)
	}
	for _, reason := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(s.Err, "not captured: %s: %s\n", strings.Join(files[reason], ", "), terminal.SanitizeText([]byte(reason), false))
	}
	if _, denied := c.errorsByFile["pprof/heap.prof"]; denied {
		fmt.Fprintln(s.Err, "For profiles the configuration of the agent needs enable_debug = true")
	}
}

// writeTarGz writes the content of a directory as a gzipped tar archive.
func writeTarGz(to io.Writer, dir string) error {
	compressed := gzip.NewWriter(to)
	archive := tar.NewWriter(compressed)
	return errors.Join(archive.AddFS(os.DirFS(dir)), archive.Close(), compressed.Close())
}
