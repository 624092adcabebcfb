package streaming

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
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
		err := FrameReader{OnData: func(data []byte) error { got.Write(data); return nil }}.Read(t.Context(), all, errs)
		if !errors.Is(err, c.want) || got.String() != "abc" {
			t.Errorf("%s: got %q and %v, want abc and %v", name, got.String(), err, c.want)
		}
	}
	refused := make(chan error, 1)
	refused <- broken
	if err := (FrameReader{}).Read(t.Context(), nil, refused); !errors.Is(err, broken) {
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
		tail := &tailBuffer{maxLines: 2, maxBytes: 1000, out: func(data []byte) error { got = append(got, string(data)); return nil }}
		err := FrameReader{OnData: tail.add, onIdle: tail.flush, outputEnded: over}.Read(t.Context(), stream, nil)
		if want := "two\nthree\n|four\n|five\n"; err != nil || strings.Join(got, "|") != want {
			t.Errorf("got %q and %v, want %q", strings.Join(got, "|"), err, want)
		}
	})
}

// TestEndOfSlowStream checks that output which is still missing when a task has ended is requested.
func TestEndOfSlowStream(t *testing.T) {
	t.Parallel()
	const output = "one\ntwo\nthree\n"
	for name, c := range map[string]struct {
		lines int
		late  bool   // the task has ended before the first read
		come  string // output that arrives while the client follows the stream
		gone  bool   // output that arrives later
		want  string
	}{
		"all, of which a part has come": {lines: -1, come: "one\n", want: output},
		"all, of which nothing has":     {lines: -1, want: output},
		"all, too late":                 {lines: -1, late: true, want: output},
		"all, gone in between":          {lines: -1, come: "one\n", gone: true, want: "one\n"},
		"tail that has come":            {lines: 2, come: output, want: "two\nthree\n"},
		"tail that has not":             {lines: 2, want: "two\nthree\n"},
		"tail, too late":                {lines: 2, late: true, want: "two\nthree\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			over := make(chan struct{})
			if c.late {
				close(over)
			}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				q := r.URL.Query()
				offset, _ := strconv.Atoi(q.Get("offset"))
				text := c.come
				switch {
				case !strings.HasPrefix(r.URL.Path, "/v1/client/fs/logs/"), c.gone && q.Get("follow") == "false":
					http.Error(w, "no such thing", http.StatusNotFound)
					return
				case q.Get("follow") == "true":
					defer func() { <-r.Context().Done() }()
					defer time.AfterFunc(idleDelay, func() { close(over) })
				case q.Get("origin") == api.OriginEnd:
					text = output[max(0, len(output)-offset):]
				default:
					text = output[offset:]
				}
				_ = json.NewEncoder(w).Encode(api.StreamFrame{File: "f", Data: []byte(text)})
				_ = http.NewResponseController(w).Flush()
			}))
			defer server.Close()
			client, err := api.NewClient(&api.Config{Address: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			r := LogRequest{Alloc: &api.Allocation{ID: "a"}, Task: "t", Stream: api.FSLogNameStdout, Follow: true, TailLines: c.lines, TailBytes: -1, TaskEnded: over}
			err = r.StreamLog(t.Context(), client, func(data []byte) error { got.Write(data); return nil })
			if err != nil || got.String() != c.want {
				t.Errorf("got %q and %v, want %q", got.String(), err, c.want)
			}
		})
	}
}

// TestTailIsBounded checks that a tail does not buffer an endless stream that has no pause.
func TestTailIsBounded(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	tail := &tailBuffer{maxLines: 1, maxBytes: 10, out: func(data []byte) error { got.Write(data); return nil }}
	for range 5 {
		if err := tail.add([]byte("1234\n")); err != nil {
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
	if err := (FrameReader{}).Read(ctx, make(chan *api.StreamFrame), make(chan error)); err != nil {
		t.Error(err)
	}
}
