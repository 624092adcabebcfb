package main

import (
	"bytes"
	"context"
	"sync"

	"github.com/nomad-lite/nomad-lite/runtime/logs"
)

// maxLine is where a line without an end is shown all the same.
const maxLine = 64 << 10

// follow shows what a task writes, from its first start to its last byte.
func (r *foregroundRun) follow(ctx context.Context, t *taskLine, ended <-chan struct{}) {
	select {
	case <-t.started:
	case <-ended:
		if !closed(t.started) {
			return
		}
	}
	var streams sync.WaitGroup
	for _, stream := range []logs.Stream{logs.Stdout, logs.Stderr} {
		streams.Go(func() {
			var lines lineBuffer
			show := func(line []byte) { r.view.line(t, stream == logs.Stderr, line) }
			err := r.agent.Logs().Follow(ctx, logs.FollowRequest{
				AllocID: t.alloc.ID,
				Task:    t.name,
				Dir:     t.logDir,
				Stream:  stream,
			}, func(c logs.Chunk) error {
				lines.add(c.Data, show)
				return nil
			})
			lines.flush(show)
			if err != nil {
				r.view.note("output of task " + t.label + " is not shown any more: " + err.Error())
			}
		})
	}
	streams.Wait()
}

// lineBuffer cuts a stream into lines.
type lineBuffer struct{ rest []byte }

func (b *lineBuffer) add(data []byte, show func([]byte)) {
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n') + 1
		if end == 0 {
			b.rest = append(b.rest, data...)
			if len(b.rest) >= maxLine {
				b.flush(show)
			}
			return
		}
		show(append(b.rest, data[:end]...))
		b.rest = b.rest[:0]
		data = data[end:]
	}
}

func (b *lineBuffer) flush(show func([]byte)) {
	if len(b.rest) > 0 {
		show(b.rest)
		b.rest = b.rest[:0]
	}
}
