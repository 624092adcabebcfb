package confined

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"reflect"
	"runtime/debug"
	"strings"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec"
)

// The limits of a child. Only tests set others.
var (
	maxMemory uint64 = 512 << 20
	maxTime          = 10 * time.Second
)

const (
	atOnce     = 2
	maxReply   = 64 << 20
	maxStderr  = 4 << 10
	killWithin = time.Second
)

// TextError says what is wrong with the text of a job.
type TextError struct{ Text string }

func (e *TextError) Error() string { return e.Text }

// Parser reads job files, each in a child.
type Parser struct {
	args  []string
	slots chan struct{} // one for each child at work
}

// New returns a parser whose children are this binary with the arguments, its name
// first, which make it call Serve.
func New(args ...string) *Parser {
	return &Parser{args: args, slots: make(chan struct{}, atOnce)}
}

// request and reply are what goes between the two sides. Numbers of a
// configuration stay what they are: msgpack tells 1 from 1.0.
type request struct{ Text, Variables string }

type reply struct {
	Job   *api.Job
	Error string
}

func handle() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.RawToString = true
	h.MapType = reflect.TypeFor[map[string]any]()
	return h
}

// Parse reads the text of a job, with the text of a variable file that may be
// empty. Variables that the job does not declare are ignored. What is wrong with
// the text is a TextError. It waits while there are other children, and ends when
// ctx does; the child then ends too.
func (p *Parser) Parse(ctx context.Context, text, variables string) (*api.Job, error) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxTime, errTooMuch)
	defer cancel()
	var in bytes.Buffer
	if err := codec.NewEncoder(&in, handle()).Encode(request{text, variables}); err != nil {
		return nil, fmt.Errorf("parse job: %w", err)
	}
	// Not a path: there may be a newer binary by now.
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = p.args
	cmd.Env = []string{"GOTRACEBACK=none", "GOMAXPROCS=1"}
	cmd.WaitDelay = killWithin
	out, complaint := &limited{room: maxReply}, &limited{room: maxStderr}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, out, complaint
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case context.Cause(ctx) != nil && !errors.Is(context.Cause(ctx), errTooMuch):
		return nil, context.Cause(ctx)
	case context.Cause(ctx) != nil, errors.As(err, &exit) && exit.ExitCode() != exitBroken, out.cut:
		return nil, errTooMuch
	case err != nil:
		return nil, fmt.Errorf("parse job: %w: %s", err, bytes.TrimSpace(complaint.text.Bytes()))
	}
	var r reply
	if err := codec.NewDecoder(&out.text, handle()).Decode(&r); err != nil {
		return nil, fmt.Errorf("parse job: %w", err)
	}
	if r.Error != "" {
		return nil, &TextError{r.Error}
	}
	return r.Job, nil
}

// errTooMuch is said of a text whose child came to one of its limits.
var errTooMuch = &TextError{fmt.Sprintf("it takes more than %d MiB of memory or %v to evaluate", maxMemory>>20, maxTime)}

// limited keeps as much as there is room for.
type limited struct {
	text bytes.Buffer
	room int
	cut  bool
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.room-l.text.Len())
	l.text.Write(b[:n])
	l.cut = l.cut || n < len(b)
	return len(b), nil
}

// exitBroken is the exit code of a child that fails for a reason that is not in
// the text.
const exitBroken = 3

// Serve is the child: it reads one request and writes the reply. It takes the
// limits upon the whole process and returns its exit code.
func Serve(in io.Reader, out, complaint io.Writer) int {
	err := confine()
	if err == nil {
		err = serve(in, out)
	}
	if err != nil {
		fmt.Fprintln(complaint, err)
		return exitBroken
	}
	return 0
}

// confine sets the limits of this process. It also ends by itself, a little later
// than the agent would end it.
func confine() error {
	if err := process.ResetOOMScore(os.Getpid()); err != nil {
		return err
	}
	mapped, err := dataSize()
	if err != nil {
		return err
	}
	for resource, limit := range map[int]uint64{
		unix.RLIMIT_DATA:  mapped + maxMemory,
		unix.RLIMIT_CPU:   uint64(maxTime/time.Second) + 1,
		unix.RLIMIT_FSIZE: 0,
		unix.RLIMIT_CORE:  0,
	} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limit resource %d: %w", resource, err)
		}
	}
	debug.SetMemoryLimit(int64(maxMemory / 2))
	time.AfterFunc(maxTime+killWithin, func() { os.Exit(1) })
	return nil
}

// dataSize returns how much memory this process may write to.
func dataSize() (uint64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmData:")
	var kilobytes uint64
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		return 0, fmt.Errorf("read VmData in /proc/self/status: %w", err)
	}
	return kilobytes << 10, nil
}

func serve(in io.Reader, out io.Writer) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v\n%s", p, debug.Stack())
		}
	}()
	var r request
	if err := codec.NewDecoder(in, handle()).Decode(&r); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	file, diags := jobspec.Parse(jobspec.Source{Name: "input.hcl", Text: []byte(r.Text), VarText: r.Variables})
	answer := reply{Job: file.Job}
	if err := jobspec.Err(diags); err != nil {
		answer.Error = err.Error()
	}
	return codec.NewEncoder(out, handle()).Encode(answer)
}
