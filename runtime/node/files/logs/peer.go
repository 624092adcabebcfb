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

// pendingReply is a request to which the process replies later.
type pendingReply struct {
	agent     *agentConn
	requestID uint64
}

// agentConn is a connection of the collector process to an agent.
type agentConn struct {
	fd             int
	receiver       *framing.Receiver
	hello          framing.Hello // zero until the agent has sent it
	helloReceived  bool          // hello was received
	queuedMessages [][]byte      // encoded messages that the socket has not accepted yet; the first may be the rest of a message
	closed         bool
}

func newAgentConn(fd int) *agentConn {
	return &agentConn{fd: fd, receiver: framing.NewReceiver(messageLimits)}
}

// maxQueuedMessages is how many messages are queued for an agent that does not read. With more messages, the
// process closes the connection; the agent reconnects and subscribes again.
const maxQueuedMessages = 4096

// acceptAgents accepts the pending connections of agents.
func (p *server) acceptAgents() {
	for {
		fd, _, err := unix.Accept4(p.listenFD, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		if osprocess.CheckPeerUserFD(fd) != nil || p.addToEpoll(fd, unix.EPOLLIN) != nil {
			unix.Close(fd)
			continue
		}
		p.agentsByFD[int32(fd)] = newAgentConn(fd)
	}
}

const noDescriptorsText = "the log collector has no free file descriptors (ulimit -n)"

// receiveMessages receives and handles messages of an agent until none is pending.
func (p *server) receiveMessages(peer *agentConn) {
	for !peer.closed {
		if !peer.helloReceived {
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
			// An error reply ends the request. If the connection were closed instead, the agent would reconnect and
			// repeat the request.
			p.sendOrQueue(peer, &message{Op: opReply, ID: m.ID, Error: noDescriptorsText})
		case err != nil:
			p.disconnect(peer)
		case peer.hello.Version != p.hello.Version && m.Op != opQuit:
			framing.CloseAll(fds)
			p.sendOrQueue(peer, &message{Op: opReply, ID: m.ID, Error: fmt.Sprintf("operation %q of version %d: the log collector has version %d", m.Op, peer.hello.Version, p.hello.Version)})
		default:
			p.handleRequest(peer, m, fds)
		}
	}
}

// handleHello replies to the hello message of an agent.
func (p *server) handleHello(peer *agentConn) {
	peer.helloReceived = true
	p.hadAgent = true
	p.sendOrQueue(peer, p.hello)
	if peer.hello.Version != p.hello.Version {
		return
	}
	for _, e := range p.streams {
		if e.writeFailure.isDropping {
			p.sendOrQueue(peer, e.lossMessage())
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
		p.sendOrQueue(peer, reply)
	case opStop:
		p.trimmer.NotifyBusy()
		e := p.streams[m.Key]
		if e == nil {
			p.sendOrQueue(peer, reply)
			break
		}
		e.addStopRequest(pendingReply{peer, m.ID}, time.Now().Add(time.Duration(m.GraceMillis)*time.Millisecond))
		e.keepOpenWhileWriter = m.KeepOpen
		p.readyStreams[e] = true
	case opQuit:
		p.quitRequested = true
	case opIdle:
		p.quitRequested = len(p.streams) == 0
	case opStats:
		reply.Streams, reply.Written, reply.Lost = p.countOutput()
		p.sendOrQueue(peer, reply)
	case opSubscribe:
		p.addSubscriber(peer, m)
	default:
		reply.Error = fmt.Sprintf("operation %q is unknown", m.Op)
		p.sendOrQueue(peer, reply)
	}
	framing.CloseAll(fds)
}

// addStopRequest adds a request to end the stream as soon as it has no writer and no output, or else at the deadline. Of
// several deadlines, the earliest counts.
func (e *serverStream) addStopRequest(w pendingReply, deadline time.Time) {
	if len(e.stopRequests) == 0 || deadline.Before(e.stopDeadline) {
		e.stopDeadline = deadline
	}
	e.stopRequests = append(e.stopRequests, w)
}

// addSubscriber sends one opOutput to an agent as soon as a stream has output behind the position in m, which may be
// immediately.
func (p *server) addSubscriber(peer *agentConn, m *message) {
	e := p.streams[m.Key]
	if e != nil {
		e.refreshFileSize()
	}
	switch {
	case e == nil: // a stream that the process does not have has no output to report
	case e.fileIndex > m.Index || e.fileIndex == m.Index && e.fileSize != m.Offset: // also true after the file was truncated
		p.sendOrQueue(peer, &message{Op: opOutput, Key: m.Key, Index: e.fileIndex, Offset: e.fileSize})
	case !slices.Contains(e.subscribers, peer):
		e.subscribers = append(e.subscribers, peer)
	}
}

// sendOrQueue sends or queues a message. It never blocks.
func (p *server) sendOrQueue(peer *agentConn, m any) {
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
		p.sendQueued(peer)
	}
}

// broadcast sends a message to all agents that have the protocol version of this process.
func (p *server) broadcast(m *message) {
	for _, peer := range p.agentsByFD {
		if peer.hello.Version == p.hello.Version {
			p.sendOrQueue(peer, m)
		}
	}
}

// sendQueued sends the queued messages until the socket would block.
func (p *server) sendQueued(peer *agentConn) {
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

// disconnect closes the connection to an agent. The streams that the agent has started continue.
func (p *server) disconnect(gone *agentConn) {
	if gone.closed {
		return
	}
	gone.closed = true
	gone.queuedMessages = nil
	gone.receiver.Close()
	unix.Close(gone.fd)
	delete(p.agentsByFD, int32(gone.fd))
	for _, e := range p.streams {
		e.subscribers = slices.DeleteFunc(e.subscribers, func(p *agentConn) bool { return p == gone })
	}
	if len(p.agentsByFD) == 0 {
		p.nextIdleCheck = time.Now().Add(p.conf.LingerTimeout)
	}
}
