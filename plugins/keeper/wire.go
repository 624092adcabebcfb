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
)

// A frame is four bytes of length, big-endian, then one JSON message.
// Descriptors travel with the first byte of the frame that they belong to.
const (
	maxFrame   = 4 << 20 // twice what the kernel takes as arguments and environment
	maxFiles   = 64      // descriptors in one frame
	maxWaiting = 8192    // requests of one connection without an answer
)

// op says what a request wants.
type op string

const (
	opHello     op = "hello"
	opSpawn     op = "spawn"
	opConfirm   op = "confirm" // a provisional child is to outlive the client
	opWait      op = "wait"
	opCancel    op = "cancel" // ends the wait whose request has the same id; no answer
	opHold      op = "hold"
	opTake      op = "take"
	opDrop      op = "drop"
	opKeys      op = "keys"
	opAdopt     op = "adopt" // names what a dead keeper has started
	opEphemeral op = "ephemeral"
	opParents   op = "parents" // lists the started processes that have descendants
	opReplace   op = "replace" // with the program to execute; no answer when it works
	opMove      op = "move"    // with a socket, a lock and a directory: serve another place
)

// request is what a client sends.
type request struct {
	ID           uint64       `json:"id"`
	Op           op           `json:"op"`
	Agent        bool         `json:"agent,omitempty"` // hello
	Spawn        *spawnParams `json:"spawn,omitempty"`
	Process      Process      `json:"process,omitzero"` // wait, confirm
	ListFDs      []string     `json:"keys,omitempty"`   // hold, take, drop: one descriptor each
	Drain        []bool       `json:"drain,omitempty"`  // hold: which of them are sinks
	ManagedProcs []Process    `json:"wards,omitempty"`  // adopt
	Args         []string     `json:"args,omitempty"`   // replace: argv
	Dir          string       `json:"dir,omitempty"`    // move: the path of the directory
}

// spawnParams is Command without its files, which follow in the order exec,
// stdin, stdout, stderr, those that are there.
type spawnParams struct {
	Name   string   `json:"name"`
	Path   string   `json:"path,omitempty"`
	Args   []string `json:"args"`
	Env    []string `json:"env"`
	Dir    string   `json:"dir,omitempty"`
	Exec   bool     `json:"exec,omitempty"`
	Stdin  bool     `json:"stdin,omitempty"`
	Stdout bool     `json:"stdout,omitempty"`
	Stderr bool     `json:"stderr,omitempty"`

	Provisional bool `json:"provisional,omitempty"`
}

// response is what the keeper answers. The descriptors of a take follow in the
// order of its keys.
type response struct {
	ID      uint64   `json:"id"`
	Error   string   `json:"error,omitempty"`
	Code    string   `json:"code,omitempty"`   // of errors that a caller branches on
	Errno   int      `json:"errno,omitempty"`  // of a spawn that the kernel refused
	Process Process  `json:"process,omitzero"` // spawn: the child; hello: the keeper
	Status  Status   `json:"status,omitzero"`
	ListFDs []string `json:"keys,omitempty"`
	Drain   []bool   `json:"drain,omitempty"`

	Parents   []Process `json:"parents,omitempty"`
	Ephemeral bool      `json:"ephemeral,omitempty"` // hello
}

const (
	codeUnknown = "unknown"
	codeNotHeld = "not-held"
)

// err returns the error that the response carries.
func (r *response) err() error {
	switch {
	case r.Error == "" && r.Code == "":
		return nil
	case r.Code == codeUnknown:
		return ErrUnknown
	case r.Code == codeNotHeld:
		return ErrNotHeld
	case r.Errno != 0:
		return fmt.Errorf("%s: %w", r.Error, unix.Errno(r.Errno))
	}
	return errors.New(r.Error)
}

// wire sends and receives frames on a unix stream socket. One goroutine may
// receive while others send.
type wire struct {
	conn *net.UnixConn
	mu   sync.Mutex // serialises frames that are sent
}

// send writes one frame. A peer that does not read for so long has lost its
// place, so the connection is closed then.
func (w *wire) send(msg any, fds ...int) error {
	body, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	if len(body) > maxFrame {
		return fmt.Errorf("message of %d bytes is over the limit of %d", len(body), maxFrame)
	}
	if len(fds) > maxFiles {
		return fmt.Errorf("message with %d descriptors is over the limit of %d", len(fds), maxFiles)
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

// errDescriptors means that a frame came without its descriptors, because this process
// has reached its limit. The message is there.
var errDescriptors = errors.New("no free file descriptors (ulimit -n)")

// receive reads one frame into msg. The caller owns the descriptors; there are
// none when err is not nil.
func (w *wire) receive(msg any) ([]int, error) {
	r := &rights{conn: w.conn}
	body, err := readFrame(r)
	if err == nil && r.err != nil {
		err = r.err
	}
	if err == nil {
		err = json.Unmarshal(body, msg)
	}
	if err == nil && r.lost {
		err = errDescriptors
	}
	if err != nil {
		closeAll(r.fds)
		return nil, err
	}
	return r.fds, nil
}

// readFrame reads one frame. It takes memory only as bytes arrive, not as many
// as the header promises.
func readFrame(r io.Reader) ([]byte, error) {
	var header [4]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(header[:])
	if n > maxFrame {
		return nil, fmt.Errorf("frame of %d bytes is over the limit of %d", n, maxFrame)
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

// rights is a reader that collects the descriptors which come with the bytes.
// They stay plain numbers: an os.File of a FIFO would be watched by this
// process's poller, which would wake it for every line that a task writes.
type rights struct {
	conn *net.UnixConn
	fds  []int
	lost bool // descriptors came, and this process has room for no more
	err  error
}

func (r *rights) Read(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := r.conn.ReadMsgUnix(p, oob)
	if oobn > 0 {
		if perr := r.collect(oob[:oobn]); perr != nil {
			r.err = perr
		}
	}
	switch truncated := flags&unix.MSG_CTRUNC != 0; {
	case truncated && len(r.fds) < maxFiles:
		r.lost = true
	case truncated, len(r.fds) > maxFiles:
		r.err = fmt.Errorf("frame with more than %d descriptors", maxFiles)
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

func (r *rights) collect(oob []byte) error {
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

// duplicate returns another descriptor of the same open file or socket, as a number.
func duplicate(f syscall.Conn) (int, error) {
	raw, err := f.SyscallConn() // not f.Fd(), which makes the file blocking for everybody
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	fd := -1
	var inner error
	err = raw.Control(func(n uintptr) { fd, inner = duplicateFD(int(n)) })
	if err = errors.Join(err, inner); err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return fd, nil
}

func duplicateFD(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// socketPath is the path of a keeper's socket, as a plugin is given it. Once it has led
// to a socket, the directory two levels above is kept open, and the socket is looked up
// there: the directory may be moved, and another data directory may take its path.
type socketPath struct {
	path string
	home *os.File // opened with O_PATH; nil before the first connection
}

// dial connects to the socket and proves that the process that listens belongs to this
// user.
func (s *socketPath) dial() (*net.UnixConn, error) {
	if s.home != nil {
		return dialIn(s.home, s.path)
	}
	home, err := os.OpenFile(filepath.Dir(filepath.Dir(s.path)), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	conn, err := dialIn(home, s.path)
	if err != nil {
		home.Close()
		return nil, err
	}
	s.home = home
	return conn, nil
}

// dialIn connects to the last two names of a path in an open directory: so the length
// of the path does not matter.
func dialIn(home *os.File, path string) (*net.UnixConn, error) {
	name := filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path))
	conn, err := net.DialUnix("unix", nil, address("unix", home, name))
	if err != nil {
		return nil, err
	}
	if err := SameUser(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("keeper socket %s: %w", path, err)
	}
	return conn, nil
}

func (s *socketPath) close() {
	if s.home != nil {
		s.home.Close()
		s.home = nil
	}
}

// SameUser returns an error unless the process at the other end of a unix socket
// runs as our own user, or did when it connected.
func SameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) {
		cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if inner != nil {
		return fmt.Errorf("peer credentials: %w", inner)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("peer is user %d, not %d", cred.Uid, os.Geteuid())
	}
	return nil
}
