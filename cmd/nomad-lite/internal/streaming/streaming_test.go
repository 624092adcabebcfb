package streaming

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
)

func TestLastLines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"", 3, ""},
		{"a\nb\nc\n", 0, ""},
		{"a\nb\nc\n", 1, "c\n"},
		{"a\nb\nc", 1, "c"},
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"a\nb\nc\n", 3, "a\nb\nc\n"},
		{"a\nb\nc\n", 9, "a\nb\nc\n"},
		{"\n\n", 1, "\n"},
	} {
		if got := string(LastLines([]byte(c.text), c.n)); got != c.want {
			t.Errorf("last %d lines of %q: got %q, want %q", c.n, c.text, got, c.want)
		}
	}
}

// newFrameStream returns a stream of frames with these texts, like one of the Go client. It ends
// with the error.
func newFrameStream(end error, texts ...string) (<-chan *api.StreamFrame, <-chan error) {
	all, errs := make(chan *api.StreamFrame, len(texts)), make(chan error, 1)
	for _, text := range texts {
		all <- &api.StreamFrame{Data: []byte(text)}
	}
	if end != nil {
		errs <- end
	} else {
		close(all)
	}
	return all, errs
}

func TestFrameReader(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		end  error
		want error
	}{
		"a stream that ends":                           {nil, nil},
		"a stream of files, whose end is an error":     {io.EOF, nil},
		"a stream that breaks with frames in the pipe": {broken, broken},
	} {
		var got strings.Builder
		all, errs := newFrameStream(c.end, "a", "b", "c")
		err := FrameReader{OnData: func(data []byte) error { got.Write(data); return nil }}.ReadFrames(t.Context(), all, errs)
		if !errors.Is(err, c.want) || got.String() != "abc" {
			t.Errorf("%s: got %q and %v, want abc and %v", name, got.String(), err, c.want)
		}
	}
	refused := make(chan error, 1)
	refused <- broken
	if err := (FrameReader{}).ReadFrames(t.Context(), nil, refused); !errors.Is(err, broken) {
		t.Errorf("a stream that is refused: got %v", err)
	}
}

// TestTailOfLiveStream reads a stream from its last two lines on, until the task has ended and its
// last output has arrived.
func TestTailOfLiveStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got []string
		over := make(chan struct{})
		stream := make(chan *api.StreamFrame)
		send := func(text string) { stream <- &api.StreamFrame{Data: []byte(text)} }
		go func() {
			send("one\ntwo\n")
			send("three\n")
			time.Sleep(2 * idleDelay)
			send("four\n")
			close(over)
			time.Sleep(idleDelay / 2)
			send("five\n")
		}()
		tail := &tailBuffer{maxLines: 2, flushAtBytes: 1000, writeOutput: func(data []byte) error { got = append(got, string(data)); return nil }}
		err := FrameReader{OnData: tail.addData, onIdle: tail.flush, writerEnded: over}.ReadFrames(t.Context(), stream, nil)
		if want := "two\nthree\n|four\n|five\n"; err != nil || strings.Join(got, "|") != want {
			t.Errorf("got %q and %v, want %q", strings.Join(got, "|"), err, want)
		}
	})
}

// TestTailIsBounded checks that a tail does not buffer an endless stream that has no pause.
func TestTailIsBounded(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	tail := &tailBuffer{maxLines: 1, flushAtBytes: 10, writeOutput: func(data []byte) error { got.Write(data); return nil }}
	for range 5 {
		if err := tail.addData([]byte("1234\n")); err != nil {
			t.Fatal(err)
		}
	}
	if want := strings.Repeat("1234\n", 4); got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}

func TestInterruptedStreamIsNoError(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (FrameReader{}).ReadFrames(ctx, make(chan *api.StreamFrame), make(chan error)); err != nil {
		t.Error(err)
	}
}
