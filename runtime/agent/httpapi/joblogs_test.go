package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// logNode is a node with the log files of allocations.
type logNode struct {
	stubNode
	allocsRoot string
}

func (n logNode) AllocDir(id string) (*allocdir.Dir, error) { return allocdir.New(n.allocsRoot, id) }

// jobLogFixture is an API with jobs whose tasks have written output.
type jobLogFixture struct {
	*fixture
	node logNode
}

func newJobLogFixture(t *testing.T) *jobLogFixture {
	f := &jobLogFixture{node: logNode{allocsRoot: t.TempDir()}}
	f.fixture = newFixture(t, func(c *Config) { setNode(c, f.node) })
	return f
}

func (f *jobLogFixture) update(t *testing.T, change func(*store.Txn)) {
	t.Helper()
	if _, err := f.store.Update(t.Context(), func(tx *store.Txn) error { change(tx); return nil }); err != nil {
		t.Fatal(err)
	}
}

// putAlloc stores an allocation of a job with tasks "a" and "b", which have started.
func (f *jobLogFixture) putAlloc(t *testing.T, namespace, jobID, name string) *api.Allocation {
	t.Helper()
	started := &api.TaskState{State: "running", StartedAt: time.Now()}
	alloc := &api.Allocation{
		ID: uuid.NewString(), Namespace: namespace, JobID: jobID, Name: name, TaskGroup: "g", ClientStatus: "running", DesiredStatus: "run",
		TaskStates: map[string]*api.TaskState{"a": started, "b": started, "not-started": {}},
		Job:        &api.Job{ID: &jobID, Name: &jobID, Namespace: &namespace, TaskGroups: []*api.TaskGroup{{Name: new("g")}}},
	}
	f.update(t, func(tx *store.Txn) { tx.PutScheduledAllocation(alloc) })
	if err := os.MkdirAll(f.logDir(t, alloc), 0o755); err != nil {
		t.Fatal(err)
	}
	return alloc
}

func (f *jobLogFixture) logDir(t *testing.T, alloc *api.Allocation) string {
	dir, err := f.node.AllocDir(alloc.ID)
	if err != nil {
		t.Fatal(err)
	}
	return dir.LogDir()
}

const jobLogTime = 1_763_762_400_000

// write appends lines to a log file, each as "milliseconds text".
func (f *jobLogFixture) write(t *testing.T, alloc *api.Allocation, file string, lines ...string) {
	t.Helper()
	path := filepath.Join(f.logDir(t, alloc), file)
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	timesPath := filepath.Join(filepath.Dir(path), logfile.ArrivalTimesFile(file))
	times, _ := os.ReadFile(timesPath)
	for _, line := range lines {
		milliseconds, text := 0, ""
		if _, err := fmt.Sscanf(line, "%d", &milliseconds); err != nil {
			t.Fatal(err)
		}
		_, text, _ = strings.Cut(line, " ")
		times = logfile.AppendArrivalTime(times, logfile.ArrivalTime{}, logfile.ArrivalTime{Offset: int64(len(content)), Time: time.UnixMilli(jobLogTime + int64(milliseconds))})
		content = append(content, text+"\n"...)
	}
	if err := errors.Join(os.WriteFile(path, content, 0o644), os.WriteFile(timesPath, times, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// decodeJobLog returns the lines of a response in short form, and its last progress.
func decodeJobLog(t *testing.T, r io.Reader) (lines []jobLogLine, last jobLogProgress) {
	t.Helper()
	d := json.NewDecoder(r)
	for {
		var frame jobLogFrame
		if err := d.Decode(&frame); errors.Is(err, io.EOF) {
			return lines, last
		} else if err != nil {
			t.Fatal(err)
		}
		if frame.Error != "" {
			t.Fatalf("the search has ended: %s", frame.Error)
		}
		lines = append(lines, frame.Lines...)
		if frame.Progress != nil {
			last = *frame.Progress
		}
	}
}

func describeJobLog(lines []jobLogLine) string {
	var all []string
	for _, l := range lines {
		all = append(all, fmt.Sprintf("%d %s %s %s %s", l.Time-jobLogTime, l.AllocName, l.Task, strings.TrimPrefix(l.Stream, "std"), l.Text))
	}
	return strings.Join(all, "\n")
}

func TestJobLogs(t *testing.T) {
	f := newJobLogFixture(t)
	first, second := f.putAlloc(t, "default", "web", "web.g[0]"), f.putAlloc(t, "default", "web", "web.g[1]")
	f.write(t, first, "a.stdout.0", "1 one", "4 four", "9 nine ERROR")
	f.write(t, first, "a.stderr.0", "2 two error")
	f.write(t, first, "b.stdout.3", "4 also four")
	f.write(t, first, "b.stdout.4", "8 eight")
	f.write(t, second, "a.stdout.0", "3 three", "7 seven Error")
	f.write(t, second, "not-started.stdout.0", "5 not of a task that has started")
	f.write(t, f.putAlloc(t, "default", "other", "other.g[0]"), "a.stdout.0", "1 of another job")
	f.write(t, f.putAlloc(t, "prod", "web", "web.g[0]"), "a.stdout.0", "1 of another namespace")
	parent := &api.Job{ID: new("batch"), Name: new("batch"), Namespace: new("default"), Version: new(uint64(0)), Type: new("batch"), ParameterizedJob: &api.ParameterizedJobConfig{}}
	child := &api.Job{ID: new("batch/dispatch-1"), Name: new("batch"), Namespace: new("default"), Version: new(uint64(0)), Type: new("batch"), ParentID: new("batch")}
	f.update(t, func(tx *store.Txn) { tx.PutJobAndVersion(parent); tx.PutJobAndVersion(child) })
	f.write(t, f.putAlloc(t, "default", "batch/dispatch-1", "batch.g[0]"), "a.stdout.0", "1 of a child")

	all := []string{
		"1 web.g[0] a out one", "2 web.g[0] a err two error", "3 web.g[1] a out three", "4 web.g[0] a out four", "4 web.g[0] b out also four",
		"7 web.g[1] a out seven Error", "8 web.g[0] b out eight", "9 web.g[0] a out nine ERROR",
	}
	pick := func(indexes ...int) string {
		var picked []string
		for _, i := range indexes {
			picked = append(picked, all[i])
		}
		return strings.Join(picked, "\n")
	}
	position := func(index int) string {
		lines, _ := decodeJobLog(t, f.send("GET", "/v1/job/web/logs", nil).Body)
		return lines[index].Position
	}
	for _, c := range []struct{ target, want string }{
		{"web/logs", pick(0, 1, 2, 3, 4, 5, 6, 7)},
		{"web/logs?reverse=true", pick(7, 6, 5, 4, 3, 2, 1, 0)},
		{"web/logs?reverse=true&lines=3", pick(7, 6, 5)},
		{"web/logs?lines=2", pick(0, 1)},
		{"web/logs?type=stderr", pick(1)},
		{"web/logs?task=b", pick(4, 6)},
		{"web/logs?group=g&alloc_id=" + second.ID, pick(2, 5)},
		{"web/logs?group=none", ""},
		{"web/logs?text=eRRor", pick(1, 5, 7)},
		{"web/logs?regexp=(four|Error)$", pick(3, 4, 5)},
		{"web/logs?regexp=(four|Error)$&reverse=true&lines=1", pick(5)},
		{"web/logs?from=" + position(4), pick(4, 5, 6, 7)},
		{"web/logs?after=" + position(4), pick(5, 6, 7)},
		{"web/logs?reverse=true&before=" + position(4), pick(3, 2, 1, 0)},
		{fmt.Sprintf("web/logs?from=%d", jobLogTime+4), pick(3, 4, 5, 6, 7)},
		{fmt.Sprintf("web/logs?reverse=true&before=%d", jobLogTime+4), pick(2, 1, 0)},
		{"web/logs?namespace=prod", "1 web.g[0] a out of another namespace"},
		{"batch/logs", "1 batch.g[0] a out of a child"},
		{"batch%2Fdispatch-1/logs", "1 batch.g[0] a out of a child"},
	} {
		r := f.send("GET", "/v1/job/"+c.target, nil)
		if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("%s: %s, %s", c.target, r.Status, bodyText(r))
			continue
		}
		lines, last := decodeJobLog(t, r.Body)
		if got := describeJobLog(lines); got != c.want || !strings.Contains(c.target, "lines=") && !last.IsComplete {
			t.Errorf("%s: %+v, got\n%s\nwant\n%s", c.target, last, got, c.want)
		}
	}
	for _, c := range []struct {
		target string
		code   int
		want   string
	}{
		{"none/logs", 404, "job not found"},
		{"web/logs?namespace=*", 404, "job not found"},
		{"web/logs?type=x", 400, "type must be stdout or stderr"},
		{"web/logs?lines=0", 400, "lines must be a positive number"},
		{"web/logs?follow=x", 400, `Failed to parse value of "follow" (x) as a bool`},
		{"web/logs?from=x", 400, `Failed to parse value of "from" (x) as a position`},
		{"web/logs?before=1", 400, "before needs a search that is reverse"},
		{"web/logs?reverse=true&follow=true", 400, "from, after and follow need a search that is not reverse"},
		{"web/logs?reverse=true&from=1", 400, "from, after and follow need a search that is not reverse"},
		{"web/logs?from=1&after=1", 400, "from and after exclude each other"},
		{"web/logs?text=a&regexp=b", 400, "text and regexp exclude each other"},
		{"web/logs?regexp=(", 400, "error parsing regexp: missing closing ): `(`"},
		{"web/logs?regexp=" + strings.Repeat("a", 1001), 400, "the regular expression has more than 1000 bytes"},
		{"web/logs?regexp=((a{100}){100}){100}", 400, "error parsing regexp: invalid repeat count"},
		{"web/logs?regexp=(" + strings.Repeat("ab", 200) + "){100}", 400, "the regular expression has too many repetitions"},
	} {
		r := f.send("GET", "/v1/job/"+c.target, nil)
		if text := bodyText(r); r.StatusCode != c.code || !strings.HasPrefix(text, c.want) {
			t.Errorf("%.60s: got %d %s, want %d %s", c.target, r.StatusCode, text, c.code, c.want)
		}
	}
}

// startJobLog requests the output of a job from a server, so that the response arrives while it is written.
func (f *jobLogFixture) startJobLog(t *testing.T, ctx context.Context, target string) *json.Decoder {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(ctx, "GET", server.URL+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return json.NewDecoder(response.Body)
}

func TestJobLogsAreFollowed(t *testing.T) {
	t.Parallel()
	f := newJobLogFixture(t)
	first := f.putAlloc(t, "default", "web", "web.g[0]")
	f.write(t, first, "a.stdout.0", "1 stored match", "2 stored other")
	d := f.startJobLog(t, t.Context(), "/v1/job/web/logs?follow=true&text=match")
	var got []jobLogLine
	readLine := func(want string) {
		t.Helper()
		for len(got) == 0 {
			var frame jobLogFrame
			if err := d.Decode(&frame); err != nil || frame.Error != "" {
				t.Fatal(err, frame.Error)
			}
			got = append(got, frame.Lines...)
		}
		if text := describeJobLog(got); text != want {
			t.Fatalf("got %s, want %s", text, want)
		}
		got = nil
	}
	readLine("1 web.g[0] a out stored match")
	f.write(t, first, "a.stdout.0", "3 new match", "4 new other")
	readLine("3 web.g[0] a out new match")
	second := f.putAlloc(t, "default", "web", "web.g[1]")
	f.write(t, second, "b.stderr.0", "2 match of a new allocation")
	readLine("2 web.g[1] b err match of a new allocation")
	f.write(t, first, "a.stdout.1", "9 match in a new file")
	readLine("9 web.g[0] a out match in a new file")
}

// TestJobLogSearchEndsWithItsClient disconnects during a search of a file that takes hours to read.
func TestJobLogSearchEndsWithItsClient(t *testing.T) {
	t.Parallel()
	f := newJobLogFixture(t)
	alloc := f.putAlloc(t, "default", "web", "web.g[0]")
	f.write(t, alloc, "a.stdout.0", "1 line")
	if err := os.Truncate(filepath.Join(f.logDir(t, alloc), "a.stdout.0"), 1<<42); err != nil {
		t.Fatal(err)
	}
	ctx, disconnect := context.WithCancel(t.Context())
	defer disconnect()
	// More searches than can have a processor or memory: the others wait, and can be given up.
	var decoders []*json.Decoder
	for i := range maxOpenSearches + 3 {
		decoders = append(decoders, f.startJobLog(t, ctx, "/v1/job/web/logs?regexp=absent"+[]string{"", "&reverse=true"}[i%2]))
	}
	for i := range maxOpenSearches {
		var frame jobLogFrame
		for frame.Progress == nil || frame.Progress.ReadBytes == 0 {
			if err := decoders[i].Decode(&frame); err != nil {
				t.Fatal(err)
			}
		}
	}
	disconnect()
	// A search of another client ends only if those of the clients that have disconnected do not hold its room.
	if err := os.Truncate(filepath.Join(f.logDir(t, alloc), "a.stdout.0"), 5); err != nil {
		t.Fatal(err)
	}
	for range maxOpenSearches {
		lines, last := decodeJobLog(t, f.send("GET", "/v1/job/web/logs", nil).Body)
		if len(lines) != 1 || !last.IsComplete {
			t.Fatalf("got %s, %+v", describeJobLog(lines), last)
		}
	}
}

// TestJobLogsReadNewestAllocations checks that a job with very many allocations does not take memory for all of them.
func TestJobLogsReadNewestAllocations(t *testing.T) {
	f := newJobLogFixture(t)
	const count = maxSearchedStreams/4 + 3 // allocations, with four streams each
	for i := range count {
		alloc := f.putAlloc(t, "default", "web", fmt.Sprintf("web.g[%d]", i))
		f.write(t, alloc, "a.stdout.0", fmt.Sprintf("%d line", i))
	}
	lines, last := decodeJobLog(t, f.send("GET", "/v1/job/web/logs", nil).Body)
	if want := []int64{jobLogTime + 3, jobLogTime + count - 1}; len(lines) != count-3 || last.OmittedAllocations != 3 || !slices.Equal([]int64{lines[0].Time, lines[len(lines)-1].Time}, want) {
		t.Errorf("%d lines, %+v", len(lines), last)
	}
}
