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
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/nomad/api"
	"github.com/nomad-lite/nomad-lite/internal/confine"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
)

// Limits of a child. Only tests change them.
var (
	maxMemory    uint64 = 512 << 20
	maxParseTime        = 10 * time.Second
)

const (
	maxParallelChildren = 2
	maxReplySize        = 64 << 20
	maxStderrSize       = 4 << 10
	exitTimeout         = time.Second
)

// ParseError is an error in the text of a job.
type ParseError struct{ Text string }

func (e *ParseError) Error() string { return e.Text }

// ChildProcessParser parses each job file in a child process.
type ChildProcessParser struct {
	childArgv  []string
	childSlots chan struct{} // semaphore: has an element for each running child
}

// NewChildProcessParser returns a parser that starts this binary with the arguments, the program name first, as its
// child processes. With these arguments the binary calls ServeParseRequest.
func NewChildProcessParser(childArgv ...string) *ChildProcessParser {
	return &ChildProcessParser{childArgv: childArgv, childSlots: make(chan struct{}, maxParallelChildren)}
}

// parseRequest and parseReply are the messages between parent and child. The number types of a configuration
// are preserved: msgpack distinguishes 1 from 1.0.
type parseRequest struct {
	JobText, VarFileText string
	ConfigFaults         []jobspec.ConfigFault // errors in the job, which the child places in the text
}

type parseReply struct {
	Job   *api.Job
	Error string
}

func newMsgpackHandle() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.RawToString = true
	h.MapType = reflect.TypeFor[map[string]any]()
	return h
}

// Parse parses the text of a job, with the text of a variable file, which may be empty. Variables
// that the job does not declare are ignored. An error in the text is a ParseError. Parse blocks
// while too many children run. It returns when ctx ends, which kills the child.
func (p *ChildProcessParser) Parse(ctx context.Context, jobText, varFileText string) (*api.Job, error) {
	return p.parse(ctx, parseRequest{JobText: jobText, VarFileText: varFileText})
}

// PlaceConfigFaults returns a ParseError with the faults in config blocks of a text that Parse has accepted, each with its
// position. It blocks as Parse does.
func (p *ChildProcessParser) PlaceConfigFaults(ctx context.Context, jobText, varFileText string, faults []jobspec.ConfigFault) error {
	_, err := p.parse(ctx, parseRequest{jobText, varFileText, faults})
	return err
}

func (p *ChildProcessParser) parse(ctx context.Context, request parseRequest) (*api.Job, error) {
	select {
	case p.childSlots <- struct{}{}:
		defer func() { <-p.childSlots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxParseTime, errLimitReached)
	defer cancel()
	var in bytes.Buffer
	if err := codec.NewEncoder(&in, newMsgpackHandle()).Encode(request); err != nil {
		return nil, fmt.Errorf("parse job: %w", err)
	}
	opcount.Count(opcount.Fork)
	// /proc/self/exe is this binary, even if a newer binary has replaced it at its path.
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = p.childArgv
	cmd.Env = []string{"GOTRACEBACK=none", "GOMAXPROCS=1"}
	cmd.WaitDelay = exitTimeout
	out, stderr := &truncatingBuffer{maxBytes: maxReplySize}, &truncatingBuffer{maxBytes: maxStderrSize}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, out, stderr
	err := cmd.Run()
	var exitErr *exec.ExitError
	switch {
	case context.Cause(ctx) != nil && !errors.Is(context.Cause(ctx), errLimitReached):
		return nil, context.Cause(ctx)
	case context.Cause(ctx) != nil, errors.As(err, &exitErr) && exitErr.ExitCode() != exitCodeFailed, out.isTruncated:
		return nil, errLimitReached
	case err != nil:
		return nil, fmt.Errorf("parse job: %w: %s", err, bytes.TrimSpace(stderr.text.Bytes()))
	}
	var r parseReply
	if err := codec.NewDecoder(&out.text, newMsgpackHandle()).Decode(&r); err != nil {
		return nil, fmt.Errorf("parse job: %w", err)
	}
	if r.Error != "" {
		return nil, &ParseError{r.Error}
	}
	return r.Job, nil
}

// errLimitReached is the error for a text whose child reached one of its limits.
var errLimitReached = &ParseError{fmt.Sprintf("it takes more than %d MiB of memory or %v to evaluate", maxMemory>>20, maxParseTime)}

// truncatingBuffer is a writer that keeps the first maxBytes bytes and drops the rest.
type truncatingBuffer struct {
	text        bytes.Buffer
	maxBytes    int
	isTruncated bool
}

func (l *truncatingBuffer) Write(b []byte) (int, error) {
	n := min(len(b), l.maxBytes-l.text.Len())
	l.text.Write(b[:n])
	l.isTruncated = l.isTruncated || n < len(b)
	return len(b), nil
}

// exitCodeFailed is the exit code of a child that fails for a reason other than an error in the text.
const exitCodeFailed = 3

// ServeParseRequest is the child: it reads one request, writes the reply and returns the exit code. It sets
// limits for the whole process.
func ServeParseRequest(in io.Reader, out, stderr io.Writer) (exitCode int) {
	err := limitOwnResourcesAndLifetime()
	if err == nil {
		err = decodeParseAndReply(in, out)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitCodeFailed
	}
	return 0
}

// limitOwnResourcesAndLifetime sets the limits of this process. The process also exits by itself, a second after the
// agent would kill it.
func limitOwnResourcesAndLifetime() error {
	if err := osprocess.ResetOOMScore(os.Getpid()); err != nil {
		return err
	}
	if err := confine.LimitProcess(maxMemory, maxParseTime); err != nil {
		return err
	}
	debug.SetMemoryLimit(int64(maxMemory / 2))
	time.AfterFunc(maxParseTime+exitTimeout, func() { os.Exit(1) })
	return nil
}

func decodeParseAndReply(in io.Reader, out io.Writer) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v\n%s", p, debug.Stack())
		}
	}()
	var r parseRequest
	if err := codec.NewDecoder(in, newMsgpackHandle()).Decode(&r); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	file, diags := jobspec.Parse(jobspec.ParseInput{DiagnosticFileName: "input.hcl", Text: []byte(r.JobText), VarFileText: r.VarFileText})
	answer := parseReply{Job: file.Job, Error: file.ConfigFaultsText(r.ConfigFaults)}
	if err := jobspec.Err(diags); err != nil {
		answer.Error = err.Error()
	}
	return codec.NewEncoder(out, newMsgpackHandle()).Encode(answer)
}
