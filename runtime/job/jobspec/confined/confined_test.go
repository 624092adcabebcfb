package confined

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
)

// TestMain also runs the children: one with the usual limits, one with almost no memory, one that
// never replies, and one that fails.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "serve", "score":
	case "small":
		maxMemory = 1 << 20
	case "slow":
		time.Sleep(time.Hour)
	case "broken":
		fmt.Fprintln(os.Stderr, "no good")
		os.Exit(exitCodeFailed)
	default:
		os.Exit(m.Run())
	}
	code := ServeParseRequest(os.Stdin, os.Stdout, os.Stderr)
	if os.Args[1] == "score" {
		text, _ := os.ReadFile("/proc/self/oom_score_adj")
		fmt.Fprintf(os.Stderr, "score %s", text)
		os.Exit(exitCodeFailed)
	}
	os.Exit(code)
}

// The OOM killer kills the child before the agent.
func TestChildResetsOOMScore(t *testing.T) {
	processtest.SetOOMScore(t, "-500")
	if _, err := NewChildProcessParser(os.Args[0], "score").Parse(t.Context(), jobText, ""); err == nil || !strings.HasSuffix(err.Error(), "score 0") {
		t.Errorf("got %v, want the score 0", err)
	}
}

const jobText = `
variable "n" { default = 1 }
job "web" {
  datacenters = []
  group "app" {
    count = var.n
    task "main" {
      driver = "raw_exec"
      leader = false
      config {
        whole = 1
        part  = 1.5
        list  = ["a", true, null]
        block { x = 10000000000000001 }
      }
      env { KERNEL = "${attr.kernel.name}" }
    }
  }
}`

// The child returns the same result as a parse in this process.
func TestParse(t *testing.T) {
	file, diags := jobspec.Parse(jobspec.ParseInput{DiagnosticFileName: "input.hcl", Text: []byte(jobText), VarFileText: "n = 3\nother = 1"})
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	job, err := NewChildProcessParser(os.Args[0], "serve").Parse(t.Context(), jobText, "n = 3\nother = 1")
	if err != nil {
		t.Fatal(err)
	}
	got, gotErr := json.Marshal(job)
	want, wantErr := json.Marshal(file.Job)
	if gotErr != nil || wantErr != nil || string(got) != string(want) || *job.TaskGroups[0].Count != 3 {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPlaceConfigFaults(t *testing.T) {
	err := NewChildProcessParser(os.Args[0], "serve").PlaceConfigFaults(t.Context(), jobText, "", []jobspec.ConfigFault{
		{Group: "app", Task: "main", Text: `Invalid label: No argument or block type is named "part".`},
		{Group: "app", Task: "main", Text: `Missing required argument: The argument "command" is required.`},
	})
	const want = "input.hcl:12,9-20: Task \"main\": Unsupported argument: No argument or block type is named \"part\".\n" +
		"input.hcl:10,7-13: Task \"main\": Missing required argument: The argument \"command\" is required."
	var textErr *ParseError
	if !errors.As(err, &textErr) || textErr.Text != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestParseRejects(t *testing.T) {
	large := `job "x" { meta { a = "` + strings.Repeat("x", 900<<10) + `" } }`
	for _, c := range []struct{ name, child, text, want string }{
		{"a fault", "serve", "bad", "input.hcl:1,1-4: Argument or block definition required; An argument or block definition is required here. To set an argument, use the equals sign \"=\" to introduce the argument value."},
		{"a file of the host", "serve", `job "x" { name = file("/etc/passwd") }`, "filesystem function disabled"},
		{"too much memory", "small", large, errLimitReached.Text},
	} {
		t.Run(c.name, func(t *testing.T) {
			job, err := NewChildProcessParser(os.Args[0], c.child).Parse(t.Context(), c.text, "")
			var textErr *ParseError
			if !errors.As(err, &textErr) || !strings.Contains(textErr.Text, c.want) {
				t.Errorf("%v, %v, want %q", job, err, c.want)
			}
		})
	}
}

func TestFailedChildIsNoParseError(t *testing.T) {
	_, err := NewChildProcessParser(os.Args[0], "broken").Parse(t.Context(), jobText, "")
	var textErr *ParseError
	if err == nil || errors.As(err, &textErr) || !strings.Contains(err.Error(), "no good") {
		t.Error(err)
	}
}

// A child exits when it reaches its time limit, and when the context of its caller
// ends.
func TestChildExitsOnTimeoutAndCancel(t *testing.T) {
	p := NewChildProcessParser(os.Args[0], "slow")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range maxParallelChildren + 1 {
		go func() {
			_, err := p.Parse(ctx, jobText, "")
			ended <- err
		}()
	}
	time.AfterFunc(100*time.Millisecond, cancel)
	for range maxParallelChildren + 1 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	defer func(d time.Duration) { maxParseTime = d }(maxParseTime)
	maxParseTime = 50 * time.Millisecond
	var textErr *ParseError
	if _, err := p.Parse(t.Context(), jobText, ""); !errors.As(err, &textErr) {
		t.Error(err)
	}
}

// BenchmarkParse measures the cost of a child, which is mostly its start.
func BenchmarkParse(b *testing.B) {
	p := NewChildProcessParser(os.Args[0], "serve")
	for b.Loop() {
		if _, err := p.Parse(b.Context(), jobText, ""); err != nil {
			b.Fatal(err)
		}
	}
}
