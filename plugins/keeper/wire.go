package keeper

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/process"
)

// A frame is four bytes of length, big-endian, followed by one JSON message. Descriptors are
// sent with the first byte of their frame.
const (
	maxFrameSize    = 4 << 20 // maxFrameSize: bytes; twice the kernel's limit for arguments and environment
	maxFrameFDs     = 64      // descriptors in one frame
	maxWaitsPerConn = 8192    // wait requests without a response per connection
)

// op is the operation of a request.
type op string

const (
	opHello               op = "hello"
	opSpawn               op = "spawn"
	opKeepAfterDisconnect op = "confirm" // confirm clears KillOnDisconnect of a child
	opWait                op = "wait"
	opCancelWait          op = "cancel" // cancel ends the wait request with the same ID; it has no response
	opStoreFD             op = "hold"
	opGetFDs              op = "take"
	opRemoveFD            op = "drop"
	opListFDs             op = "keys"
	opGetProgram          op = "program" // the response has a descriptor of the program of the process
	opAdoptProcesses      op = "adopt"   // the request contains the processes that a dead keeper has started
	opSetEphemeral        op = "ephemeral"
	// opEndWithoutTasks makes the keeper exit once this agent has disconnected and no task runs below the keeper.
	opEndWithoutTasks op = "end-without-tasks"
	// opListParentProcesses returns the keeper and its spawned processes, if tasks run below them.
	opListParentProcesses op = "parents"
	opReplaceProgram      op = "replace" // the request contains the program to execute; no response on success
)

// request is a message from a client.
type request struct {
	ID      uint64       `json:"id"`
	Op      op           `json:"op"`
	IsAgent bool         `json:"agent,omitempty"` // in the request hello: the client is an agent
	Spawn   *spawnParams `json:"spawn,omitempty"`
	Process process.ID   `json:"process,omitzero"` // in the requests wait, confirm and program: the process
	// in the requests hold, take and drop: one key per descriptor.
	Keys []string `json:"keys,omitempty"`
	// in the request hold: whether the keeper drains each descriptor.
	DrainWithoutAgent []bool       `json:"drain,omitempty"`
	ManagedProcs      []process.ID `json:"wards,omitempty"` // adopt: the processes
	Args              []string     `json:"args,omitempty"`  // replace: argv
}

// spawnParams is a Command without its files. HasExec, HasStdin, HasStdout and HasStderr
// report which files are set; the message has their descriptors in this order.
type spawnParams struct {
	Name      string   `json:"name"`
	Path      string   `json:"path,omitempty"`
	Args      []string `json:"args"`
	Env       []string `json:"env"`
	Dir       string   `json:"dir,omitempty"`
	HasExec   bool     `json:"exec,omitempty"`
	HasStdin  bool     `json:"stdin,omitempty"`
	HasStdout bool     `json:"stdout,omitempty"`
	HasStderr bool     `json:"stderr,omitempty"`

	KillOnDisconnect bool `json:"provisional,omitempty"`
}

// response is a message from the keeper. The response to the request take has descriptors
// in the order of the request's keys.
type response struct {
	ID    uint64 `json:"id"`
	Error string `json:"error,omitempty"`
	// Code: identifies an error that the client handles.
	Code              string             `json:"code,omitempty"`
	Errno             int                `json:"errno,omitempty"`  // in the response to spawn: the kernel's error number
	Process           process.ID         `json:"process,omitzero"` // in the response to spawn: the child; to hello: the keeper
	Status            process.ExitStatus `json:"status,omitzero"`
	Keys              []string           `json:"keys,omitempty"`
	DrainWithoutAgent []bool             `json:"drain,omitempty"`

	ParentProcesses []process.ID `json:"parents,omitempty"`
	Ephemeral       bool         `json:"ephemeral,omitempty"` // in the response to hello: whether the keeper is ephemeral
}

const (
	codeExitStatusUnknown = "unknown"
	codeFDNotStored       = "not-held"
)

// err returns the error that the response carries.
func (r *response) err() error {
	switch {
	case r.Error == "" && r.Code == "":
		return nil
	case r.Code == codeExitStatusUnknown:
		return ErrExitStatusUnknown
	case r.Code == codeFDNotStored:
		return ErrFDNotStored
	case r.Errno != 0:
		return fmt.Errorf("%s: %w", r.Error, unix.Errno(r.Errno))
	}
	return errors.New(r.Error)
}

// frameConn sends and receives frames on a unix stream socket. One goroutine may
// receive while others send.
type frameConn struct {
	conn *net.UnixConn
	mu   sync.Mutex // serialises sent frames
}

// sendFrame writes one frame. It closes the connection on failure, also if the peer does not read
// for ten seconds, because a frame may have been sent in part.
func (w *frameConn) sendFrame(msg any, fds ...int) error {
	body, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	if len(body) > maxFrameSize {
		return fmt.Errorf("message of %d bytes is over the limit of %d", len(body), maxFrameSize)
	}
	if len(fds) > maxFrameFDs {
		return fmt.Errorf("message with %d descriptors is over the limit of %d", len(fds), maxFrameFDs)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	frame = append(frame, body...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.conn.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	n, _, err := w.conn.WriteMsgUnix(frame, oob, nil)
	if err == nil && n < len(frame) {
		_, err = w.conn.Write(frame[n:])
	}
	if err != nil {
		w.conn.Close()
	}
	return err
}

// errNoFreeFDs means that a frame arrived without its descriptors, because this process has
// reached its limit. The message itself is decoded.
var errNoFreeFDs error = noFreeFDsError{}

type noFreeFDsError struct{}

func (noFreeFDsError) Error() string { return "no free file descriptors (ulimit -n)" }
func (noFreeFDsError) Unwrap() error { return unix.EMFILE }

// receiveFrame reads one frame into msg, and returns its descriptors, which the caller must
// close. After an error there are no descriptors.
func (w *frameConn) receiveFrame(msg any) ([]int, error) {
	r := &fdReader{conn: w.conn}
	body, err := readFrame(r)
	if err == nil && r.err != nil {
		err = r.err
	}
	if err == nil {
		err = json.Unmarshal(body, msg)
	}
	if err == nil && r.fdsLost {
		err = errNoFreeFDs
	}
	if err != nil {
		closeFDs(r.fds)
		return nil, err
	}
	return r.fds, nil
}

// readFrame reads one frame. It allocates memory for the bytes that it has received, not
// for the length in the header.
func readFrame(r io.Reader) ([]byte, error) {
	var header [4]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(header[:])
	if n > maxFrameSize {
		return nil, fmt.Errorf("frame of %d bytes is over the limit of %d", n, maxFrameSize)
	}
	var body bytes.Buffer
	if _, err := io.CopyN(&body, r, int64(n)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return body.Bytes(), nil
}

// fdReader collects the descriptors that arrive with the bytes that it reads. They are
// numbers and not os.Files, because Go's poller would watch a FIFO and wake this process
// for every line that a task writes.
type fdReader struct {
	conn    *net.UnixConn
	fds     []int
	fdsLost bool // fdsLost: received descriptors were dropped because this process has no free ones
	err     error
}

func (r *fdReader) Read(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFrameFDs))
	n, oobn, flags, _, err := r.conn.ReadMsgUnix(p, oob)
	if oobn > 0 {
		if perr := r.collectFDs(oob[:oobn]); perr != nil {
			r.err = perr
		}
	}
	switch truncated := flags&unix.MSG_CTRUNC != 0; {
	case truncated && len(r.fds) < maxFrameFDs:
		r.fdsLost = true
	case truncated, len(r.fds) > maxFrameFDs:
		r.err = fmt.Errorf("frame with more than %d descriptors", maxFrameFDs)
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

func (r *fdReader) collectFDs(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("read descriptors: %w", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fmt.Errorf("read descriptors: %w", err)
		}
		r.fds = append(r.fds, fds...)
	}
	return nil
}

// duplicateFile returns a duplicate of the file's descriptor.
func duplicateFile(f syscall.Conn) (int, error) {
	raw, err := f.SyscallConn() // f.Fd() would make the open file blocking, also for other processes
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	fd := -1
	var dupErr error
	err = raw.Control(func(n uintptr) { fd, dupErr = duplicateFD(int(n)) })
	if err = errors.Join(err, dupErr); err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return fd, nil
}

func duplicateFD(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// socketPath is the path of a keeper's socket, as a plugin gets it. After the first
// connection, dirHandle stays open and the socket is looked up below it, because the directory may
// be moved, and another data directory may take its path.
type socketPath struct {
	path      string
	dirHandle *os.File // opened with O_PATH; nil before the first connection
}

// dial connects to the socket and verifies that the listening process belongs to this user.
func (s *socketPath) dial() (*net.UnixConn, error) {
	if s.dirHandle != nil {
		return dialInDir(s.dirHandle, s.path)
	}
	home, err := openDirHandle(filepath.Dir(filepath.Dir(s.path)))
	if err != nil {
		return nil, err
	}
	conn, err := dialInDir(home, s.path)
	if err != nil {
		home.Close()
		return nil, err
	}
	s.dirHandle = home
	return conn, nil
}

// dialInDir connects to the last two elements of a path, relative to an open directory, so that
// the length of the path does not matter.
func dialInDir(home *os.File, path string) (*net.UnixConn, error) {
	name := filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path))
	conn, err := net.DialUnix("unix", nil, unixAddr("unix", home, name))
	if err != nil {
		return nil, err
	}
	if err := process.CheckPeerUser(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("keeper socket %s: %w", path, err)
	}
	return conn, nil
}

func (s *socketPath) close() {
	if s.dirHandle != nil {
		s.dirHandle.Close()
		s.dirHandle = nil
	}
}
