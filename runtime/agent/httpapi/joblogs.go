package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logsearch"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// jobLogsPattern is the route of the output of a job.
const jobLogsPattern = "/v1/job/{id...}/logs"

// jobLogHandler serves the output of all tasks of a job, an addition to Nomad's API.
type jobLogHandler struct {
	store *store.Store
	files AllocFiles
	// openSearches limits the memory of the searches that run: a search has an element in the channel while it reads
	// stored output. readingSearches limits how many of them use a processor.
	openSearches, readingSearches chan struct{}
}

// maxOpenSearches is the number of searches that have lines in memory at the same time. Others wait.
const maxOpenSearches = 8

func newJobLogHandler(s *store.Store, files AllocFiles) *jobLogHandler {
	return &jobLogHandler{s, files, make(chan struct{}, maxOpenSearches), make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

// maxSearchedStreams limits the memory of a search. The output of the newest allocations is searched if there is more.
const maxSearchedStreams = 1000

const (
	maxFrameLines       = 256
	maxFrameBytes       = 64 << 10
	progressInterval    = 200 * time.Millisecond // between frames while there are few lines
	maxReadingTime      = 20 * time.Millisecond  // after which another search is read
	minFollowInterval   = 500 * time.Millisecond // between two looks for new output
	maxFollowInterval   = 2 * time.Second        // while there is no new output
	maxFollowLoad       = 10                     // a look is followed by a pause of at least this many times its duration
	outputAfterAllocEnd = 5 * time.Second        // in which the last output of an ended allocation arrives
)

// jobLogFrame is a message of the response, in one line. A message without a field is a heartbeat.
type jobLogFrame struct {
	Lines []jobLogLine `json:",omitempty"`
	// Progress is set in some of the messages, and in the first one, and when all stored output was read.
	Progress *jobLogProgress `json:",omitempty"`
	Error    string          `json:",omitempty"` // why the search has ended
}

type jobLogProgress struct {
	ReadBytes, TotalBytes int64
	IsComplete            bool  // all stored output was read, and the lines in it were sent
	StartedAt             int64 // of the search, in milliseconds since 1970
	OmittedAllocations    int   // older allocations whose output is not read, because the job has too many
}

type jobLogLine struct {
	Position                  string // value for the parameters before, from and after
	Time                      int64  // milliseconds since 1970
	AllocID, AllocName, JobID string
	Task                      string
	Stream                    string // stdout or stderr
	Text                      string // without the line end; bytes that are not UTF-8 are replaced
	IsPartial                 bool   `json:",omitempty"` // the line has no end yet
	AfterGap                  bool   `json:",omitempty"` // output before the line was removed before it was read
}

// jobLogSelection says which output of a job is read.
type jobLogSelection struct {
	group, task, allocID string
	outputs              []logs.Stream
}

func (h *jobLogHandler) stream(r *request) (any, error) {
	search, maxLines, follow, err := r.parseJobLogSearch()
	if err != nil {
		return nil, err
	}
	selection := jobLogSelection{r.query.Get("group"), r.query.Get("task"), r.query.Get("alloc_id"), []logs.Stream{logs.Stdout, logs.Stderr}}
	switch output := logs.Stream(r.query.Get("type")); output {
	case "":
	case logs.Stdout, logs.Stderr:
		selection.outputs = []logs.Stream{output}
	default:
		return nil, badRequestError("type must be stdout or stderr")
	}
	allocs, exists, err := h.jobAllocs(r)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, notFoundError("job not found")
	}
	f := &jobLogStream{handler: h, request: r, maxLines: maxLines, startedAt: time.Now().UnixMilli(), allocs: map[string]*api.Allocation{}}
	if search.Streams, err = f.selectStreams(allocs, selection); err != nil {
		return nil, err
	}
	if follow {
		search.Follow = f.follow(selection)
	}
	// A proxy that collects a response before it passes it on would hide the progress.
	r.w.Header().Set("X-Accel-Buffering", "no")
	r.w.Header().Set("Cache-Control", "no-store")
	f.responseStream = r.startStream("application/x-ndjson")
	f.run(r.Context(), search)
	return nil, nil
}

// parseJobLogSearch reads the parameters that select lines.
func (r *request) parseJobLogSearch() (search logsearch.Request, maxLines int, follow bool, err error) {
	position := func(name string) *logsearch.Position {
		text := r.query.Get(name)
		if text == "" || err != nil {
			return nil
		}
		p, parseErr := logsearch.ParsePosition(text)
		if parseErr != nil {
			err = parameterError(name, text, "a position", parseErr)
		}
		return &p
	}
	boolean := func(name string) (value bool) {
		if err == nil {
			value, err = r.boolParam(name)
		}
		return value
	}
	search.Backward, follow = boolean("reverse"), boolean("follow")
	before, from, after := position("before"), position("from"), position("after")
	text, expression := r.query.Get("text"), r.query.Get("regexp")
	if count := r.query.Get("lines"); count != "" && err == nil {
		if maxLines, err = strconv.Atoi(count); err != nil || maxLines <= 0 {
			err = fmt.Errorf("lines must be a positive number")
		}
	}
	switch {
	case err != nil:
	case search.Backward && (from != nil || after != nil || follow):
		err = fmt.Errorf("from, after and follow need a search that is not reverse")
	case !search.Backward && before != nil:
		err = fmt.Errorf("before needs a search that is reverse")
	case from != nil && after != nil:
		err = fmt.Errorf("from and after exclude each other")
	case text != "" && expression != "":
		err = fmt.Errorf("text and regexp exclude each other")
	case text != "":
		search.Filter, err = logsearch.NewTextFilter(text)
	case expression != "":
		search.Filter, err = logsearch.NewRegexpFilter(expression)
	}
	if err != nil {
		return search, 0, false, badRequestError(err.Error())
	}
	search.From, search.ExcludeFrom = before, after != nil
	for _, p := range []*logsearch.Position{from, after} {
		if p != nil {
			search.From = p
		}
	}
	return search, maxLines, follow, nil
}

// jobAllocs returns the allocations of a job, or of the children of a periodic or parameterized job. exists is false if there is
// no such job. A node of a cluster has the allocations of the job that run on it, and no job.
func (h *jobLogHandler) jobAllocs(r *request) (allocs []*api.Allocation, exists bool, err error) {
	namespace, jobID := r.namespace, r.pathID
	s, err := r.snapshot(h.store, nil)
	if err != nil {
		return nil, false, err
	}
	allocs = s.WithoutEndedEvents().AllocationsByJob(nil, namespace, jobID)
	job := s.Job(nil, namespace, jobID)
	if job != nil && model.CanHaveChildren(job) {
		for _, child := range s.JobChildren(nil, namespace, jobID) {
			allocs = append(allocs, s.WithoutEndedEvents().AllocationsByJob(nil, namespace, pointer.Value(child.ID))...)
		}
	}
	return allocs, job != nil || len(allocs) > 0, nil
}

// jobLogStream is the response to one request.
type jobLogStream struct {
	handler *jobLogHandler
	request *request
	*responseStream
	allocs       map[string]*api.Allocation // allocations of the streams, by id
	omitted      int
	startedAt    int64
	maxLines     int // 0 means no limit
	lines        int // that were sent or are in frame
	frame        jobLogFrame
	frameBytes   int
	lastFrame    time.Time
	isOpen       bool      // the stream has an element in openSearches
	readingSince time.Time // when the stream has put its element into readingSearches; zero if it has none there
	isComplete   bool      // all stored output was sent
	hasNewOutput bool      // output was read since the last look
	buf          bytes.Buffer
}

// selectStreams returns the streams that tasks of the allocations have written, oldest allocation first.
func (f *jobLogStream) selectStreams(allocs []*api.Allocation, selection jobLogSelection) ([]logsearch.Stream, error) {
	allocs = slices.Clone(allocs)
	slices.SortStableFunc(allocs, compareAllocAge)
	var newestFirst [][]logsearch.Stream
	count := 0
	f.omitted = 0
	for _, a := range slices.Backward(allocs) {
		if selection.group != "" && a.TaskGroup != selection.group || selection.allocID != "" && a.ID != selection.allocID {
			continue
		}
		dir, err := f.handler.files.AllocDir(a.ID)
		if err != nil {
			return nil, err
		}
		var streams []logsearch.Stream
		for _, task := range slices.Sorted(maps.Keys(a.TaskStates)) {
			if state := a.TaskStates[task]; state == nil || state.StartedAt.IsZero() || selection.task != "" && task != selection.task {
				continue
			}
			for _, output := range selection.outputs {
				streams = append(streams, logsearch.Stream{StreamKey: logsearch.StreamKey{AllocID: a.ID, Task: task, Output: output}, LogDir: dir.LogDir()})
			}
		}
		if len(streams) == 0 {
			continue
		}
		if count += len(streams); count > maxSearchedStreams {
			f.omitted++
			continue
		}
		f.allocs[a.ID] = a
		newestFirst = append(newestFirst, streams)
	}
	slices.Reverse(newestFirst)
	return slices.Concat(newestFirst...), nil
}

// compareAllocAge orders allocations by age, oldest first, and those of the same age by the index in their names.
func compareAllocAge(a, b *api.Allocation) int {
	return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(len(a.Name), len(b.Name)), strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
}

// run sends the lines of a search, until it ends, its maximum number of lines was sent, or the client disconnects.
func (f *jobLogStream) run(ctx context.Context, search logsearch.Request) {
	defer f.stopReading()
	if f.startReading(ctx) != nil {
		return
	}
	f.frame.Progress = &jobLogProgress{StartedAt: f.startedAt, OmittedAllocations: f.omitted}
	err := logsearch.Run(ctx, search, f.addLine, f.addProgress)
	if err != nil && !errors.Is(err, errMaxLines) {
		f.frame.Error = err.Error()
	}
	if ctx.Err() == nil && (f.frame.Error != "" || len(f.frame.Lines) > 0) {
		_ = f.sendFrame(ctx) // the client may have disconnected
	}
}

// startReading waits until the search can have lines in memory and use a processor. It returns an error when ctx ends.
func (f *jobLogStream) startReading(ctx context.Context) error {
	select {
	case f.handler.openSearches <- struct{}{}:
		f.isOpen = true
		return f.takeProcessor(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stopReading undoes startReading.
func (f *jobLogStream) stopReading() {
	f.yieldProcessor()
	if f.isOpen {
		f.isOpen = false
		<-f.handler.openSearches
	}
}

func (f *jobLogStream) takeProcessor(ctx context.Context) error {
	select {
	case f.handler.readingSearches <- struct{}{}:
		f.readingSince = time.Now()
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *jobLogStream) yieldProcessor() {
	if !f.readingSince.IsZero() {
		f.readingSince = time.Time{}
		<-f.handler.readingSearches
	}
}

var errMaxLines = errors.New("the maximum number of lines was sent")

func (f *jobLogStream) addLine(l logsearch.Line) error {
	if f.maxLines > 0 && f.lines == f.maxLines {
		return errMaxLines
	}
	f.lines++
	alloc := f.allocs[l.Stream.AllocID]
	f.frame.Lines = append(f.frame.Lines, jobLogLine{
		Position: l.Position.String(), Time: l.Time.UnixMilli(), AllocID: alloc.ID, AllocName: alloc.Name, JobID: alloc.JobID,
		Task: l.Stream.Task, Stream: string(l.Stream.Output), Text: string(l.Text), IsPartial: l.IsPartial, AfterGap: l.AfterGap,
	})
	f.frameBytes += len(l.Text)
	if len(f.frame.Lines) >= maxFrameLines || f.frameBytes >= maxFrameBytes {
		return f.sendFrame(f.request.Context())
	}
	return nil
}

// addProgress is called after each read. It sends what was found once in a while, and lets another search use the processor.
func (f *jobLogStream) addProgress(p logsearch.Progress) error {
	ctx := f.request.Context()
	f.hasNewOutput = f.hasNewOutput || p.ReadBytes > 0
	switch {
	case p.IsComplete && f.isComplete && len(f.frame.Lines) == 0: // a look for new output has found none
		return nil
	case p.IsComplete || time.Since(f.lastFrame) >= progressInterval:
		f.isComplete = f.isComplete || p.IsComplete
		f.frame.Progress = &jobLogProgress{p.ReadBytes, p.TotalBytes, p.IsComplete, f.startedAt, f.omitted}
		return f.sendFrame(ctx)
	case time.Since(f.readingSince) >= maxReadingTime:
		f.yieldProcessor()
		return f.takeProcessor(ctx)
	}
	return nil
}

// sendFrame sends the frame. Another search can use the processor meanwhile.
func (f *jobLogStream) sendFrame(ctx context.Context) error {
	isReading := !f.readingSince.IsZero()
	f.yieldProcessor()
	f.buf.Reset()
	encoder := json.NewEncoder(&f.buf)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(f.frame); err != nil {
		return err
	}
	f.frame, f.frameBytes, f.lastFrame = jobLogFrame{Lines: f.frame.Lines[:0]}, 0, time.Now()
	if _, err := f.Write(f.buf.Bytes()); err != nil || !isReading {
		return err
	}
	return f.takeProcessor(ctx)
}

// follow returns a function that waits for new output, and returns the streams of the tasks that run or have ended a short time ago.
func (f *jobLogStream) follow(selection jobLogSelection) func(context.Context) ([]logsearch.Stream, error) {
	endedAt := map[string]time.Time{} // allocation id -> when it was seen to have ended
	lookStart, interval := time.Now(), minFollowInterval
	return func(ctx context.Context) ([]logsearch.Stream, error) {
		f.stopReading()
		interval = min(maxFollowInterval, interval*3/2)
		if f.hasNewOutput {
			interval = minFollowInterval
		}
		interval = max(interval, maxFollowLoad*time.Since(lookStart))
		f.hasNewOutput = false
		timer := time.NewTimer(interval)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if time.Since(f.lastFrame) >= heartbeatInterval {
			if err := f.sendFrame(ctx); err != nil {
				return nil, err
			}
		}
		if err := f.startReading(ctx); err != nil {
			return nil, err
		}
		lookStart = time.Now()
		allocs, exists, err := f.handler.jobAllocs(f.request)
		if err != nil {
			return nil, err
		}
		if !exists {
			return nil, errors.New("the job was removed")
		}
		allocs = slices.DeleteFunc(allocs, func(a *api.Allocation) bool {
			if !a.ClientTerminalStatus() {
				return false
			}
			if endedAt[a.ID].IsZero() {
				endedAt[a.ID] = lookStart
			}
			return lookStart.Sub(endedAt[a.ID]) > outputAfterAllocEnd
		})
		return f.selectStreams(allocs, selection)
	}
}
