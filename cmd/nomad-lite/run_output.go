package main

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/nomad-lite/nomad-lite/runtime/logs"
)

// maxLine is the number of bytes after which an unterminated line is shown.
const maxLine = 64 << 10

// follow shows the output of a task, from its first start to its last byte. It returns
// without output for a task that has not started when shown is closed.
func (r *foregroundRun) follow(ctx context.Context, t *taskLine, shown <-chan struct{}) {
	defer close(t.silent)
	select {
	case <-t.started:
	case <-shown:
		if !closed(t.started) {
			return
		}
	}
	var stderr sync.WaitGroup
	stderr.Go(func() { r.read(ctx, t, logs.Stderr) })
	r.read(ctx, t, logs.Stdout)
	stderr.Wait()
}

// read shows one stream of a started task until the final end of the stream.
func (r *foregroundRun) read(ctx context.Context, t *taskLine, stream logs.Stream) {
	var lines lineBuffer
	last := int64(-1) // number of the last log file
	show := func(text []byte) { r.view.lines(t, stream == logs.Stderr, text) }
	err := r.agent.Logs().Follow(ctx, logs.FollowRequest{
		AllocID: t.alloc.ID,
		Task:    t.name,
		Dir:     t.logDir,
		Stream:  stream,
	}, func(c logs.Chunk) error {
		file, _ := strconv.ParseInt(c.File[strings.LastIndexByte(c.File, '.')+1:], 10, 64)
		if file > last+1 {
			r.view.note("a part of what task " + t.label + " wrote is not shown: it was rotated away before it was read")
		}
		last = file
		lines.add(c.Data, show)
		return nil
	})
	lines.flush(show)
	if err != nil {
		r.view.note("output of task " + t.label + " is not shown any more: " + err.Error())
	}
}

// lineBuffer splits a stream after whole lines.
type lineBuffer struct{ rest []byte }

func (b *lineBuffer) add(data []byte, show func([]byte)) {
	if first := bytes.IndexByte(data, '\n') + 1; first > 0 && len(b.rest) > 0 {
		b.rest = append(b.rest, data[:first]...)
		b.flush(show)
		data = data[first:]
	}
	if end := bytes.LastIndexByte(data, '\n') + 1; end > 0 {
		show(data[:end])
		data = data[end:]
	}
	if b.rest = append(b.rest, data...); len(b.rest) >= maxLine {
		b.flush(show)
	}
}

func (b *lineBuffer) flush(show func([]byte)) {
	if len(b.rest) > 0 {
		show(b.rest)
		b.rest = b.rest[:0]
	}
}
