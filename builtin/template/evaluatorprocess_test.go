package template

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// startTestEvaluator returns an evaluator that talks to this process over a connection.
func startTestEvaluator(t *testing.T) *EvaluatorProcess {
	t.Helper()
	own, other := net.Pipe()
	served := make(chan error)
	go func() { served <- serveEvaluations(other) }()
	p := newEvaluatorProcess(own, func() {})
	t.Cleanup(func() {
		own.Close()
		<-p.onExitReturned
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return p
}

// fixedData are the data of an evaluation; a read blocks until its context ends.
type fixedData struct{ reading chan struct{} }

func (fixedData) interpolate(_ context.Context, text string) (string, error) {
	return "<" + text + ">", nil
}

func (fixedData) randomSeed(context.Context) ([]byte, error) { return nil, permanentErrorf("no seed") }

func (d fixedData) readSource(ctx context.Context, _ sourceQuery) (sourceValue, error) {
	close(d.reading)
	<-ctx.Done()
	return sourceValue{}, ctx.Err()
}

// evaluatorUser is the user of the evaluator process of a test.
const evaluatorUser = 91234

// checkEvaluator evaluates a template in the evaluator process of this process, and checks the rights of the process.
func checkEvaluator(p *EvaluatorProcess) error {
	if os.Geteuid() != 0 {
		if p != nil {
			return errors.New("an agent that is not root cannot start a process of another user")
		}
		return nil
	}
	if p == nil {
		return errors.New("there is none")
	}
	r, err := p.evaluate(context.Background(), &evaluationRequest{Text: `{{ env "attr.a" }} {{ timestamp "2006" }}`, Now: time.Unix(1e9, 0)}, fixedData{})
	if err != nil || r.Text != "<${attr.a}> 2001" || !r.UsesTime {
		return fmt.Errorf("result %+v, %w", r, err)
	}
	children, err := osprocess.Children(os.Getpid())
	if err != nil || len(children) != 1 {
		return fmt.Errorf("there are %d, error %v", len(children), err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", children[0]))
	if err != nil {
		return err
	}
	for _, line := range []string{
		fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d", evaluatorUser), fmt.Sprintf("Gid:\t%d\t%[1]d\t%[1]d\t%[1]d", evaluatorUser),
		"Groups:\t ", "CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !bytes.Contains(status, []byte("\n"+line+"\n")) {
			return fmt.Errorf("no line %q:\n%s", line, status)
		}
	}
	return nil
}

// The end of an evaluation's context ends the evaluation on both sides, and does not affect the next one.
func TestEvaluationIsCancelled(t *testing.T) {
	p := startTestEvaluator(t)
	ctx, cancel := context.WithCancel(t.Context())
	data := fixedData{make(chan struct{})}
	go func() { <-data.reading; cancel() }()
	if r, err := p.evaluate(ctx, &evaluationRequest{Text: `{{ file "x" }}`}, data); !errors.Is(err, context.Canceled) {
		t.Errorf("result %+v, %v", r, err)
	}
	if r, err := p.evaluate(t.Context(), &evaluationRequest{Text: "b"}, data); err != nil || r.Text != "b" {
		t.Errorf("the next: %+v, %v", r, err)
	}
}

// Errors keep their text and whether a retry can fix them.
func TestEvaluationErrors(t *testing.T) {
	p := startTestEvaluator(t)
	for text, want := range map[string]struct {
		text      string
		permanent bool
	}{
		"{{ if }}":                    {"missing value for if", true},
		"{{ sprig_randAlpha 3 }}":     {"no seed", true},
		`{{ "x" | parseInt }}`:        {"parsing", false},
		`{{ parseJSON "{" | toJSON}}`: {"unexpected end", false},
	} {
		_, err := p.evaluate(t.Context(), &evaluationRequest{Text: text}, fixedData{})
		if err == nil || !strings.Contains(err.Error(), want.text) || errors.As(err, new(permanentError)) != want.permanent {
			t.Errorf("%s: error %v, want %q, permanent %v", text, err, want.text, want.permanent)
		}
	}
}

// An evaluator process that sends more than the protocol allows is disconnected, and evaluations fail.
func TestHostileEvaluatorProcess(t *testing.T) {
	for name, attack := range map[string]func(*evaluatorConn, uint64) error{
		"queries without waiting": func(c *evaluatorConn, id uint64) error {
			for range 8 {
				if err := c.send(&evaluatorFrame{EvaluationID: id, Query: &evaluationDataQuery{Source: sourceQuery{fileKind, "x"}}}); err != nil {
					return nil // it is disconnected
				}
			}
			return nil
		},
		"a long frame": func(c *evaluatorConn, _ uint64) error {
			_, err := c.conn.Write([]byte{0xff, 0xff, 0xff, 0xff})
			return err
		},
		"no frame": func(c *evaluatorConn, _ uint64) error {
			_, err := c.conn.Write([]byte{0, 0, 0, 3, 1, 2, 3})
			return err
		},
		"exit": func(c *evaluatorConn, _ uint64) error { return c.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			own, other := net.Pipe()
			exited := false
			p := newEvaluatorProcess(own, func() { exited = true })
			attacked := make(chan error)
			go func() {
				c := &evaluatorConn{conn: other}
				f, err := c.receive()
				if err == nil {
					err = attack(c, f.EvaluationID)
				}
				attacked <- err
			}()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			data := fixedData{make(chan struct{})}
			go func() { <-p.onExitReturned; cancel() }() // ends the call that reads a source
			if r, err := p.evaluate(ctx, &evaluationRequest{Text: "a"}, data); err == nil {
				t.Errorf("result %+v", r)
			}
			if err := <-attacked; err != nil {
				t.Error(err)
			}
			<-p.onExitReturned
			if !exited {
				t.Error("the exit was not reported")
			}
		})
	}
}
