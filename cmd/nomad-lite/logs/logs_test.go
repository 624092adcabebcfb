package logs

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskview"
	"github.com/nomad-lite/nomad-lite/internal/logfile"
)

// fakeAgent is an agent with the log files of one allocation.
type fakeAgent struct {
	mu       sync.Mutex
	files    map[string]string // by name; the last change of each was at modified
	modified time.Time
	follow   func(w io.Writer, flush func()) // sends the frames of a stream that is followed
	offsets  []int64                         // of the requests that follow a stream
}

func (a *fakeAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	q := r.URL.Query()
	offset, _ := strconv.ParseInt(q.Get("offset"), 10, 64)
	switch {
	case strings.HasPrefix(r.URL.Path, "/v1/client/fs/ls/"):
		defer a.mu.Unlock()
		var list []api.AllocFileInfo
		for _, name := range slices.Sorted(maps.Keys(a.files)) {
			list = append(list, api.AllocFileInfo{Name: name, Size: int64(len(a.files[name])), ModTime: a.modified})
		}
		_ = json.NewEncoder(w).Encode(list)
	case strings.HasPrefix(r.URL.Path, "/v1/client/fs/readat/"):
		defer a.mu.Unlock()
		content, ok := a.files[path.Base(q.Get("path"))]
		if !ok {
			http.Error(w, "no such file", http.StatusNotFound)
			return
		}
		limit, _ := strconv.Atoi(q.Get("limit"))
		content = content[min(int(offset), len(content)):]
		if limit > 0 {
			content = content[:min(limit, len(content))]
		}
		_, _ = io.WriteString(w, content)
	case !strings.HasPrefix(r.URL.Path, "/v1/client/fs/logs/"):
		a.mu.Unlock()
		http.Error(w, "no such node", http.StatusNotFound)
	default:
		a.offsets = append(a.offsets, offset)
		a.mu.Unlock()
		a.follow(w, func() { _ = http.NewResponseController(w).Flush() })
	}
}

// sendFrame sends output of a task that ends at an offset of a file.
func sendFrame(w io.Writer, file string, end int, data string) {
	_ = json.NewEncoder(w).Encode(api.StreamFrame{File: "alloc/logs/" + file, Offset: int64(end), Data: []byte(data)})
}

func TestMain(m *testing.M) {
	// The parallel tests wait and use no CPU time.
	_ = flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}

// newTestPrinter returns a printer that shows the output of a fake agent, a stream of it, and the function
// that returns what was printed.
func newTestPrinter(t *testing.T, agent http.Handler, o options) (*logPrinter, *outputStream, func() string) {
	t.Helper()
	server := httptest.NewServer(agent)
	t.Cleanup(server.Close)
	client, err := api.NewClient(&api.Config{Address: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p := newLogPrinter(o, time.Time{}, client)
	p.taskView = taskview.New(&cli.Streams{Out: &out, Err: &out}, nil)
	s := &outputStream{alloc: &api.Allocation{ID: "a"}, taskName: "t", streamName: "stdout", taskInView: &taskview.Task{Label: "t"}, allocEnded: make(chan struct{})}
	return p, s, func() string {
		p.taskView.Close()
		return out.String()
	}
}

// arrivalTimesFile returns the content of a file of arrival times, with offsets and seconds in turn.
func arrivalTimesFile(values ...int64) string {
	var b []byte
	for i := 0; i < len(values); i += 2 {
		b = append(b, 0)
		b = binary.AppendUvarint(b, uint64(values[i+1]*1000))
		b = binary.AppendUvarint(b, uint64(values[i]+1))
	}
	return string(b)
}

// modifiedAt is the time of the last change of the log files, in seconds.
const modifiedAt = 1000

func TestStoredLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", readSize) + "\n"
	twoFiles := map[string]string{
		"t.stdout.3": "one\ntwo\n", logfile.ArrivalTimesFile("t.stdout.3"): arrivalTimesFile(0, 10, 4, 20),
		"t.stdout.4": "three\nfour", logfile.ArrivalTimesFile("t.stdout.4"): arrivalTimesFile(0, 30, 2, 40),
		"t.stderr.0": "other\n", "t.stdout.x": "foreign",
	}
	for name, test := range map[string]struct {
		files map[string]string
		from  streamPosition
		open  bool // the task can still complete the last line
		since int64
		last  int
		want  string // "line@seconds "; without time of arrival "line?seconds "
	}{
		"no files":                              {want: ""},
		"two files":                             {files: twoFiles, want: "one@10 two@20 three@30 four@40 "},
		"an incomplete last line":               {files: twoFiles, open: true, want: "one@10 two@20 three@30 "},
		"from a position":                       {files: twoFiles, from: streamPosition{3, 4}, want: "two@20 three@30 four@40 "},
		"from a file that was removed":          {files: twoFiles, from: streamPosition{1, 50}, want: "one@10 two@20 three@30 four@40 "},
		"from a time on":                        {files: twoFiles, since: 20, want: "two@20 three@30 four@40 "},
		"a line belongs to the time it started": {files: twoFiles, since: 31, want: "four@40 "},
		"from a time after the last change":     {files: twoFiles, since: 2000, want: ""},
		"the last line":                         {files: twoFiles, last: 1, want: "four@40 "},
		"the last lines of both files":          {files: twoFiles, last: 3, want: "two@20 three@30 four@40 "},
		"more than all lines":                   {files: twoFiles, last: 9, want: "one@10 two@20 three@30 four@40 "},
		"the last lines from a time on":         {files: twoFiles, last: 3, since: 30, want: "three@30 four@40 "},
		"no line at all":                        {files: twoFiles, last: -1, want: ""},
		"another agent":                         {files: map[string]string{"t.stdout.0": "one\n"}, want: "one?1000 "},
		"another agent, from a time on":         {files: map[string]string{"t.stdout.0": "one\n"}, since: 500, want: "one?1000 "},
		"times that begin late":                 {files: map[string]string{"t.stdout.0": "one\ntwo\n", ".t.stdout.0.times": arrivalTimesFile(4, 20)}, want: "one?1000 two@20 "},
		"empty lines":                           {files: map[string]string{"t.stdout.0": "\n\n"}, last: 1, want: "?1000 "},
		"a line of several requests":            {files: map[string]string{"t.stdout.0": long + "end\n"}, last: 2, want: long[:readSize] + "?1000 end?1000 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agent := &fakeAgent{files: test.files, modified: time.Unix(modifiedAt, 0)}
			p, s, _ := newTestPrinter(t, agent, options{follow: test.open, tailLines: -1})
			if test.since > 0 {
				p.since = time.Unix(test.since, 0)
			}
			s.firstUnshownPosition = test.from
			listed, err := p.logDirOf(s).listFiles(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			files := logFilesOfStreamOldestFirst(listed, "t", "stdout")
			source := p.newStoredLineSource(s, files)
			if test.last != 0 {
				p.options.tailLines = max(0, test.last)
				lines, err := p.lastLinesOfFirstTask(t.Context(), []*outputStream{s}, listed)
				if err != nil {
					t.Fatal(err)
				}
				source = newSliceLineSource(lines)
			}
			got := ""
			for {
				l, err := source(t.Context())
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				mark := map[bool]string{true: "@", false: "?"}[l.sortTimeIsArrivalTime]
				got += fmt.Sprintf("%s%s%d ", bytes.TrimSuffix(l.text, []byte("\n")), mark, l.sortTime.Unix())
			}
			if got != test.want {
				t.Errorf("got %.80q, want %.80q", got, test.want)
			}
			if end := (streamPosition{4, 10}); strings.Contains(test.want, "four") && s.firstUnshownPosition != end {
				t.Errorf("position %v after the last line, want %v", s.firstUnshownPosition, end)
			}
		})
	}
}

func TestMergeLines(t *testing.T) {
	t.Parallel()
	source := func(name string, seconds ...int64) lineSource {
		var lines []outputLine
		for _, at := range seconds {
			lines = append(lines, outputLine{text: []byte(name), sortTime: time.Unix(at, 0)})
		}
		return newSliceLineSource(lines)
	}
	sources := func() []lineSource {
		return []lineSource{source("a", 1, 5, 5, 9), source("b"), source("c", 2, 5, 4, 9), source("d", 1)}
	}
	got := ""
	if err := mergeLinesByTime(t.Context(), sources(), func(l outputLine) error { got += string(l.text); return nil }); err != nil || got != "adcaaccac" {
		t.Errorf("got %s, %v", got, err)
	}
	lines, err := lastMergedLines(t.Context(), sources(), 2)
	if err != nil || len(lines) != 2 || string(lines[0].text)+string(lines[1].text) != "ac" {
		t.Errorf("the last two lines: %v, %v", lines, err)
	}
}

// A followed stream continues where the stored output ended, and its end is read from the files if the agent
// does not send it.
func TestFollow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files map[string]string
		from  streamPosition
		send  func(w io.Writer) // sends frames before the allocation ends
		want  string
	}{
		"the whole output is sent": {
			files: map[string]string{"t.stdout.0": "one\ntwo\n"},
			send:  func(w io.Writer) { sendFrame(w, "t.stdout.0", 8, "one\ntwo\n") },
			want:  "one two",
		},
		"a part of it": {
			files: map[string]string{"t.stdout.0": "one\ntwo\nthree"},
			send:  func(w io.Writer) { sendFrame(w, "t.stdout.0", 6, "one\ntw") },
			want:  "one two three",
		},
		"nothing of it": {files: map[string]string{"t.stdout.0": "one\ntwo\n"}, want: "one two"},
		"the part that was shown before, too": {
			files: map[string]string{"t.stdout.0": "one\ntwo\n"}, from: streamPosition{0, 4},
			send: func(w io.Writer) {
				sendFrame(w, "t.stdout.0", 4, "one\n")
				sendFrame(w, "t.stdout.0", 8, "two\n")
			},
			want: "two",
		},
		"a frame of which a part was shown": {
			files: map[string]string{"t.stdout.0": "one\ntwo\n"}, from: streamPosition{0, 4},
			send: func(w io.Writer) { sendFrame(w, "t.stdout.0", 8, "one\ntwo\n") },
			want: "two",
		},
		"a rotated file": {
			files: map[string]string{"t.stdout.0": "one\n", "t.stdout.1": "two\n"},
			send: func(w io.Writer) {
				sendFrame(w, "t.stdout.0", 4, "one\n")
				sendFrame(w, "t.stdout.1", 4, "two\n")
			},
			want: "one two",
		},
		"a part that the stream does not have": {
			files: map[string]string{"t.stdout.0": "one\ntwo\n", "t.stdout.1": "three\n"}, from: streamPosition{0, 4},
			send: func(w io.Writer) { sendFrame(w, "t.stdout.1", 6, "three\n") },
			want: "two three",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{})
			end := sync.OnceFunc(func() { close(ended) })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			agent := &fakeAgent{files: test.files, modified: time.Unix(modifiedAt, 0)}
			agent.follow = func(w io.Writer, flush func()) {
				if test.send != nil {
					test.send(w)
				}
				flush()
				time.AfterFunc(50*time.Millisecond, end)
				<-ctx.Done()
			}
			p, s, printed := newTestPrinter(t, agent, options{follow: true, tailLines: -1})
			s.firstUnshownPosition, s.allocEnded = test.from, ended
			p.followStreamUntilAllocEnded(ctx, s)
			cancel()
			if got := strings.Join(strings.Fields(strings.ReplaceAll(printed(), "t |", "")), " "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			agent.mu.Lock()
			defer agent.mu.Unlock()
			if want := test.from.byteOffset; len(agent.offsets) == 0 || agent.offsets[0] != want {
				t.Errorf("followed from offsets %v, want %d", agent.offsets, want)
			}
		})
	}
}

func TestTimestamps(t *testing.T) {
	t.Parallel()
	p := &logPrinter{options: options{printTimestamps: true}}
	at := time.Date(2026, 5, 4, 12, 0, 0, 7_000_000, time.Local)
	if got, want := string(p.appendFormattedLine(nil, at, []byte("a"))), at.Format(timestampLayout)+" a\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	unknown := string(p.appendFormattedLine(nil, time.Time{}, []byte("a\n")))
	if want := len(time.Now().Format(timestampLayout)) + len(" a\n"); strings.TrimSpace(unknown) != "a" || len(unknown) != want {
		t.Errorf("unknown time: %q", unknown)
	}
}

func TestParseSince(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"":                          "0001-01-01T00:00:00Z",
		"90m":                       "2026-05-04T10:30:00Z",
		"0s":                        "2026-05-04T12:00:00Z",
		"2026-05-04T10:30:00Z":      "2026-05-04T10:30:00Z",
		"2026-05-04T10:30:00.5Z":    "2026-05-04T10:30:00.5Z",
		"2026-05-04T10:30:00-02:00": "2026-05-04T12:30:00Z",
		"2026-05-04T10:30":          "2026-05-04T10:30:00Z",
		"2026-05-04 10:30:05":       "2026-05-04T10:30:05Z",
		"2026-05-04":                "2026-05-04T00:00:00Z",
		"-1h":                       "error",
		"yesterday":                 "error",
	} {
		got := "error"
		if at, err := parseSince(text, now); err == nil {
			got = at.UTC().Format(time.RFC3339Nano)
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestScope(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"web": "web", "greet/dispatch-1763762400-0a1b2c3d": "greet", "clean/periodic-1763762400": "clean", "a/b": "a/b", "/dispatch-1": "/dispatch-1",
	} {
		if got := parentJobIDOrSelf(id); got != want {
			t.Errorf("root of %s: %s, want %s", id, got, want)
		}
	}
	a := &api.AllocationListStub{JobID: "clean/periodic-1", Namespace: "n"}
	for _, test := range []struct {
		scope allocScope
		want  string
	}{
		{allocScope{jobID: "clean/periodic-1"}, ""},
		{allocScope{jobID: "clean", selectsChildJobs: true}, "periodic-1/"},
		{allocScope{}, "clean/periodic-1/"},
		{allocScope{namespace: "*"}, "n/clean/periodic-1/"},
	} {
		if got := test.scope.jobLabelPrefix(a); got != test.want {
			t.Errorf("%v: %q, want %q", test.scope, got, test.want)
		}
	}
}

// The lines of both streams are in the order of their arrival, and the output of an ended allocation ends.
func TestFollowTaskMergesBothStreams(t *testing.T) {
	t.Parallel()
	files := &fakeAgent{modified: time.Unix(modifiedAt, 0), files: map[string]string{
		"t.stdout.0": "one\nthree\n", logfile.ArrivalTimesFile("t.stdout.0"): arrivalTimesFile(0, 10, 4, 30),
		"t.stderr.0": "two\nfour\n", logfile.ArrivalTimesFile("t.stderr.0"): arrivalTimesFile(0, 20, 4, 40),
	}}
	alloc := &api.Allocation{
		ID: "a1", Namespace: "default", JobID: "web", Name: "web.g[0]", TaskGroup: "g", ClientStatus: api.AllocClientStatusComplete,
		TaskStates: map[string]*api.TaskState{"t": {State: "dead", StartedAt: time.Unix(5, 0)}, "other": {State: "dead", StartedAt: time.Unix(5, 0)}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/allocation/a1" {
			_ = json.NewEncoder(w).Encode(alloc)
			return
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	c, err := api.NewClient(&api.Config{Address: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	got := ""
	show := func(isStderr bool, lines []byte) {
		mu.Lock()
		defer mu.Unlock()
		for line := range strings.Lines(string(lines)) {
			got += fmt.Sprintf("%t %s", isStderr, line)
		}
	}
	if err := FollowTask(t.Context(), c, alloc, "t", 3, show, func(text string) { t.Error(text) }); err != nil {
		t.Fatal(err)
	}
	if want := "true two\nfalse three\ntrue four\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
