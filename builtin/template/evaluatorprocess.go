package template

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// maxFrameSize limits a message between the process of the hook and the evaluator process, in bytes.
const maxFrameSize = 64 << 20

// evaluatorFrame is a message between the process of the hook and the evaluator process. The process of the
// hook sends an Evaluation. The evaluator process then sends one Query after the other, each of
// which the process of the hook answers with an Answer, and at the end a Result or an Err.
type evaluatorFrame struct {
	EvaluationID uint64 // number of the evaluation, which all its frames have
	Evaluation   *evaluationRequest
	IsCancel     bool
	Query        *evaluationDataQuery
	Answer       *evaluationDataAnswer
	Result       *evaluationResult
	Err          *serializedError
}

// evaluationDataQuery is a call of evaluationData.
type evaluationDataQuery struct {
	TextToInterpolate string // argument of a call of interpolate; "" for other calls
	IsSeedQuery       bool
	Source            sourceQuery // argument of a call of readSource
}

// evaluationDataAnswer is the result of a evaluationDataQuery.
type evaluationDataAnswer struct {
	InterpolatedText string
	Seed             []byte
	Value            sourceValue
	Err              *serializedError
}

// serializedError is an error in an evaluatorFrame. Of the error's type, only the fact that it is a permanentError
// is kept.
type serializedError struct {
	Text        string
	IsPermanent bool
}

func newSerializedError(err error) *serializedError {
	if err == nil {
		return nil
	}
	return &serializedError{Text: err.Error(), IsPermanent: errors.As(err, new(permanentError))}
}

func (e *serializedError) toError() error {
	switch {
	case e == nil:
		return nil
	case e.IsPermanent:
		return permanentError{errors.New(e.Text)}
	}
	return errors.New(e.Text)
}

// evaluatorConn sends and receives frames. One goroutine may receive while others send.
type evaluatorConn struct {
	conn   net.Conn
	sendMu sync.Mutex // serializes sent frames
}

// send writes one frame. After an error the connection is closed, because a part of the frame can have been sent.
func (c *evaluatorConn) send(f *evaluatorFrame) error {
	var b bytes.Buffer
	b.Write(make([]byte, 4))
	if err := gob.NewEncoder(&b).Encode(f); err != nil {
		return err
	}
	size := b.Len() - 4
	if size > maxFrameSize {
		return fmt.Errorf("message of %d bytes is over the limit of %d", size, maxFrameSize)
	}
	binary.BigEndian.PutUint32(b.Bytes(), uint32(size))
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(sendTimeout)) // SetWriteDeadline fails only for a closed connection
	if _, err := c.conn.Write(b.Bytes()); err != nil {
		c.conn.Close()
		return err
	}
	return nil
}

// sendTimeout is the time after which a write to a process that does not read fails.
const sendTimeout = 10 * time.Second

func (c *evaluatorConn) receive() (*evaluatorFrame, error) {
	var header [4]byte
	if _, err := io.ReadFull(c.conn, header[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(header[:])
	if size > maxFrameSize {
		return nil, fmt.Errorf("message of %d bytes is over the limit of %d", size, maxFrameSize)
	}
	var b bytes.Buffer
	if _, err := io.CopyN(&b, c.conn, int64(size)); err != nil {
		return nil, err
	}
	f := &evaluatorFrame{}
	return f, gob.NewDecoder(&b).Decode(f)
}

// EvaluatorProcess evaluates templates in another process, which has none of the privileges of this
// process. It is safe for concurrent use.
type EvaluatorProcess struct {
	conn           *evaluatorConn
	onExit         func()        // called when the process has exited or has sent an invalid frame
	onExitReturned chan struct{} // closed after the call of onExit

	mu                   sync.Mutex
	lastEvaluationID     uint64
	framesByEvaluationID map[uint64]chan *evaluatorFrame
}

var errEvaluatorExited = errors.New("the process that evaluates templates has exited")

// newEvaluatorProcess returns the evaluator process at the other end of a connection.
func newEvaluatorProcess(conn net.Conn, onExit func()) *EvaluatorProcess {
	p := &EvaluatorProcess{conn: &evaluatorConn{conn: conn}, onExit: onExit, onExitReturned: make(chan struct{}), framesByEvaluationID: map[uint64]chan *evaluatorFrame{}}
	go p.dispatchFrames()
	return p
}

// dispatchFrames passes received frames to the evaluations until the connection is closed.
func (p *EvaluatorProcess) dispatchFrames() {
	defer close(p.onExitReturned)
	defer p.onExit()
	defer p.conn.conn.Close()
	for {
		f, err := p.conn.receive()
		if err != nil {
			return
		}
		p.mu.Lock()
		frames := p.framesByEvaluationID[f.EvaluationID] // nil if the evaluation was cancelled
		p.mu.Unlock()
		if frames == nil {
			continue
		}
		select {
		case frames <- f:
		default:
			return // the process violates the protocol: it sends frames without waiting for answers
		}
	}
}

func (p *EvaluatorProcess) evaluate(ctx context.Context, e *evaluationRequest, data evaluationData) (*evaluationResult, error) {
	frames := make(chan *evaluatorFrame, 1)
	p.mu.Lock()
	p.lastEvaluationID++
	id := p.lastEvaluationID
	p.framesByEvaluationID[id] = frames
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.framesByEvaluationID, id)
	}()
	if err := p.send(&evaluatorFrame{EvaluationID: id, Evaluation: e}); err != nil {
		return nil, err
	}
	cancel := func() (*evaluationResult, error) {
		_ = p.conn.send(&evaluatorFrame{EvaluationID: id, IsCancel: true}) // ignored: an error means that the process has exited
		return nil, ctx.Err()
	}
	for {
		select {
		case f := <-frames:
			switch {
			case f.Query != nil:
				answer := answerEvaluationDataQuery(ctx, f.Query, data)
				if ctx.Err() != nil {
					return cancel()
				}
				if err := p.send(&evaluatorFrame{EvaluationID: id, Answer: answer}); err != nil {
					return nil, err
				}
			case f.Result != nil:
				return f.Result, nil
			case f.Err != nil:
				return nil, f.Err.toError()
			}
		case <-ctx.Done():
			return cancel()
		case <-p.onExitReturned:
			return nil, errEvaluatorExited
		}
	}
}

// send sends a frame. If the connection is closed, send returns an error after onExit has returned.
func (p *EvaluatorProcess) send(f *evaluatorFrame) error {
	err := p.conn.send(f)
	if _, failed := errors.AsType[*net.OpError](err); failed {
		<-p.onExitReturned
	}
	if err != nil {
		return fmt.Errorf("evaluate the template: %w", err)
	}
	return nil
}

func answerEvaluationDataQuery(ctx context.Context, q *evaluationDataQuery, data evaluationData) *evaluationDataAnswer {
	a := &evaluationDataAnswer{}
	var err error
	switch {
	case q.IsSeedQuery:
		a.Seed, err = data.randomSeed(ctx)
	case q.TextToInterpolate != "":
		a.InterpolatedText, err = data.interpolate(ctx, q.TextToInterpolate)
	default:
		a.Value, err = data.readSource(ctx, q.Source)
	}
	a.Err = newSerializedError(err)
	return a
}

// serveEvaluations evaluates templates for the process at the other end of the connection, until the connection ends.
func serveEvaluations(c net.Conn) error {
	conn := &evaluatorConn{conn: c}
	var mu sync.Mutex
	running := map[uint64]*remoteEvaluationData{}
	for {
		f, err := conn.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		mu.Lock()
		data := running[f.EvaluationID] // nil if no evaluation has this number now
		mu.Unlock()
		switch {
		case f.Evaluation != nil:
			ctx, cancel := context.WithCancel(context.Background())
			data = &remoteEvaluationData{conn: conn, evaluationID: f.EvaluationID, cancel: cancel, answers: make(chan *evaluationDataAnswer, 1)}
			mu.Lock()
			running[f.EvaluationID] = data
			mu.Unlock()
			go func() {
				defer cancel()
				result, err := localEvaluator{}.evaluate(ctx, f.Evaluation, data)
				mu.Lock()
				delete(running, f.EvaluationID)
				mu.Unlock()
				_ = conn.send(&evaluatorFrame{EvaluationID: f.EvaluationID, Result: result, Err: newSerializedError(err)}) // ignored: an error means that the hook's process has exited
			}()
		case data == nil:
		case f.IsCancel:
			data.cancel()
		case f.Answer != nil:
			select {
			case data.answers <- f.Answer:
			default: // a cancelled evaluation does not receive the answer
			}
		}
	}
}

// remoteEvaluationData provides the data of one evaluation in the evaluator process, by queries to the hook's
// process. An evaluation makes one call at a time.
type remoteEvaluationData struct {
	conn         *evaluatorConn
	evaluationID uint64
	cancel       context.CancelFunc
	answers      chan *evaluationDataAnswer // receives the answer to the last query
}

func (d *remoteEvaluationData) query(ctx context.Context, q *evaluationDataQuery) (*evaluationDataAnswer, error) {
	if err := d.conn.send(&evaluatorFrame{EvaluationID: d.evaluationID, Query: q}); err != nil {
		return nil, err
	}
	select {
	case a := <-d.answers:
		return a, a.Err.toError()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *remoteEvaluationData) interpolate(ctx context.Context, text string) (string, error) {
	a, err := d.query(ctx, &evaluationDataQuery{TextToInterpolate: text})
	if err != nil {
		return "", err
	}
	return a.InterpolatedText, nil
}

func (d *remoteEvaluationData) readSource(ctx context.Context, q sourceQuery) (sourceValue, error) {
	a, err := d.query(ctx, &evaluationDataQuery{Source: q})
	if err != nil {
		return sourceValue{}, err
	}
	return a.Value, nil
}

func (d *remoteEvaluationData) randomSeed(ctx context.Context) ([]byte, error) {
	a, err := d.query(ctx, &evaluationDataQuery{IsSeedQuery: true})
	if err != nil {
		return nil, err
	}
	return a.Seed, nil
}
