package logs

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// pendingReply is a request whose reply is sent later.
type pendingReply struct {
	peer *agentConn
	id   uint64
}

// agentConn is a connected agent.
type agentConn struct {
	fd             int
	receiver       *framing.Receiver
	hello          framing.Hello // zero until the agent has sent it
	greeted        bool          // hello was received
	queuedMessages [][]byte      // messages, or the rest of a message, that the socket has not accepted yet
	closed         bool
}

func newAgentConn(fd int) *agentConn {
	return &agentConn{fd: fd, receiver: framing.NewReceiver(messageLimits)}
}

// maxQueuedMessages is how many messages are queued for an agent that does not read. An agent that is
// further behind is disconnected; it subscribes again when it reconnects.
const maxQueuedMessages = 4096

// accept accepts the pending connections.
func (p *server) accept() {
	for {
		fd, _, err := unix.Accept4(p.listenFD, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		if osprocess.CheckPeerUserFD(fd) != nil || p.addToEpoll(fd, unix.EPOLLIN) != nil {
			unix.Close(fd)
			continue
		}
		p.peers[int32(fd)] = newAgentConn(fd)
	}
}

const noDescriptorsText = "the log collector has no free file descriptors (ulimit -n)"

// receive handles the messages of an agent.
func (p *server) receive(peer *agentConn) {
	for !peer.closed {
		if !peer.greeted {
			fds, err := peer.receiver.ReceiveNow(peer.fd, &peer.hello)
			framing.CloseAll(fds)
			if errors.Is(err, unix.EAGAIN) {
				return
			}
			if err != nil {
				p.disconnect(peer)
				return
			}
			p.handleHello(peer)
			continue
		}
		m := &message{}
		fds, err := peer.receiver.ReceiveNow(peer.fd, m)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, framing.ErrNoFreeDescriptors):
			// If the connection were closed instead, the client would repeat the request on each next
			// connection.
			p.send(peer, &message{Op: opReply, ID: m.ID, Error: noDescriptorsText})
		case err != nil:
			p.disconnect(peer)
		case peer.hello.Version != p.hello.Version && m.Op != opQuit:
			framing.CloseAll(fds)
			p.send(peer, &message{Op: opReply, ID: m.ID, Error: fmt.Sprintf("operation %q of version %d: the log collector has version %d", m.Op, peer.hello.Version, p.hello.Version)})
		default:
			p.handleRequest(peer, m, fds)
		}
	}
}

// handleHello replies to the hello message of an agent.
func (p *server) handleHello(peer *agentConn) {
	peer.greeted = true
	p.agentConnected = true
	p.send(peer, p.hello)
	if peer.hello.Version != p.hello.Version {
		return
	}
	for _, e := range p.streams {
		if e.writeFailure.isDropping {
			p.send(peer, e.lossMessage())
		}
	}
}

// handleRequest handles a request of an agent. It owns fds.
func (p *server) handleRequest(peer *agentConn, m *message, fds []int) {
	reply := &message{Op: opReply, ID: m.ID}
	switch m.Op {
	case opStart:
		p.trimmer.NotifyBusy()
		if len(fds) != maxMessageFDs {
			reply.Error = fmt.Sprintf("%d descriptors came with a stream", len(fds))
		} else {
			if err := p.startStream(m, fds[0], fds[1]); err != nil {
				reply.Error = err.Error()
			}
			fds = nil
		}
		p.send(peer, reply)
	case opStop:
		p.trimmer.NotifyBusy()
		e := p.streams[m.Key]
		if e == nil {
			p.send(peer, reply)
			break
		}
		e.addStopRequest(pendingReply{peer, m.ID}, time.Now().Add(time.Duration(m.GraceMillis)*time.Millisecond))
		e.keepOpen = m.KeepOpen
		p.readyStreams[e] = true
	case opQuit:
		p.quitRequested = true
	case opIdle:
		p.quitRequested = len(p.streams) == 0
	case opStats:
		reply.Streams, reply.Written, reply.Lost = p.countOutput()
		p.send(peer, reply)
	case opSubscribe:
		p.subscribe(peer, m)
	default:
		reply.Error = fmt.Sprintf("operation %q is unknown", m.Op)
		p.send(peer, reply)
	}
	framing.CloseAll(fds)
}

// addStopRequest ends the stream when no output is left to read, or at the deadline. The earliest deadline
// counts.
func (e *serverStream) addStopRequest(w pendingReply, deadline time.Time) {
	if len(e.stopRequests) == 0 || deadline.Before(e.stopDeadline) {
		e.stopDeadline = deadline
	}
	e.stopRequests = append(e.stopRequests, w)
}

// subscribe sends opOutput to an agent once, as soon as a stream has more output than
// the position in m; it may do so immediately.
func (p *server) subscribe(peer *agentConn, m *message) {
	e := p.streams[m.Key]
	if e != nil {
		e.refreshFileSize()
	}
	switch {
	case e == nil: // a stream that the process does not have has no output to report
	case e.fileIndex > m.Index || e.fileIndex == m.Index && e.fileSize != m.Offset: // also true after the file was truncated
		p.send(peer, &message{Op: opOutput, Key: m.Key, Index: e.fileIndex, Offset: e.fileSize})
	case !slices.Contains(e.subscribers, peer):
		e.subscribers = append(e.subscribers, peer)
	}
}

// send sends or queues a message. It never blocks.
func (p *server) send(peer *agentConn, m any) {
	if peer.closed {
		return
	}
	b, err := messageLimits.Encode(m)
	if err != nil {
		panic("log collector: message does not encode: " + err.Error()) // cannot happen, because every message can be encoded
	}
	peer.queuedMessages = append(peer.queuedMessages, b)
	if len(peer.queuedMessages) > maxQueuedMessages {
		p.disconnect(peer)
		return
	}
	if len(peer.queuedMessages) == 1 {
		p.flush(peer)
	}
}

// broadcast sends a message to all agents that can read it.
func (p *server) broadcast(m *message) {
	for _, peer := range p.peers {
		if peer.hello.Version == p.hello.Version {
			p.send(peer, m)
		}
	}
}

// flush sends the queued messages until the socket would block.
func (p *server) flush(peer *agentConn) {
	waited := len(peer.queuedMessages)
	for len(peer.queuedMessages) > 0 {
		n, err := unix.SendmsgN(peer.fd, peer.queuedMessages[0], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) {
			break
		}
		if err != nil {
			p.disconnect(peer)
			return
		}
		if n < len(peer.queuedMessages[0]) {
			peer.queuedMessages[0] = peer.queuedMessages[0][n:]
			continue
		}
		peer.queuedMessages = peer.queuedMessages[1:]
	}
	if waited == 0 {
		return
	}
	events := uint32(unix.EPOLLIN)
	if len(peer.queuedMessages) > 0 {
		events |= unix.EPOLLOUT
	} else {
		peer.queuedMessages = nil
		if waited == 1 {
			return // the queue was empty, so the epoll registration has not changed
		}
	}
	_ = unix.EpollCtl(p.epollFD, unix.EPOLL_CTL_MOD, peer.fd, &unix.EpollEvent{Events: events, Fd: int32(peer.fd)})
}

// disconnect removes an agent. Its streams continue.
func (p *server) disconnect(gone *agentConn) {
	if gone.closed {
		return
	}
	gone.closed = true
	gone.queuedMessages = nil
	gone.receiver.Close()
	unix.Close(gone.fd)
	delete(p.peers, int32(gone.fd))
	for _, e := range p.streams {
		e.subscribers = slices.DeleteFunc(e.subscribers, func(p *agentConn) bool { return p == gone })
	}
	if len(p.peers) == 0 {
		p.nextIdleCheck = time.Now().Add(p.conf.LingerTimeout)
	}
}
