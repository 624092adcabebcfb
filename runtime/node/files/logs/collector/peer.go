package collector

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// pendingReply is a request that the process answers later.
type pendingReply struct {
	agent     *agentConn
	requestID uint64
}

// agentConn is the collector process's connection to an agent.
type agentConn struct {
	fd             int
	receiver       *framing.Receiver
	hello          framing.Hello // zero until the agent has sent it
	helloReceived  bool          // hello was received
	queuedMessages [][]byte      // encoded messages not yet accepted by the socket; the first may be partial
	closed         bool
}

func newAgentConn(fd int) *agentConn {
	return &agentConn{fd: fd, receiver: framing.NewReceiver(collectorwire.MessageLimits)}
}

// maxQueuedMessages is how many messages are queued for an agent if it does not read. With more messages, the process closes the
// connection; the agent reconnects and subscribes again.
const maxQueuedMessages = 4096

// acceptAgents accepts the agents' pending connections.
func (se *collectorServer) acceptAgents() {
	for {
		fd, _, err := unix.Accept4(se.listenFD, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		if osprocess.CheckPeerUserFD(fd) != nil || se.addToEpoll(fd, unix.EPOLLIN) != nil {
			unix.Close(fd)
			continue
		}
		se.agentsByFD[int32(fd)] = newAgentConn(fd)
	}
}

const noDescriptorsText = "the log collector has no free file descriptors (ulimit -n)"

// receiveMessages receives and handles an agent's messages until none is pending.
func (se *collectorServer) receiveMessages(peer *agentConn) {
	for !peer.closed {
		if !peer.helloReceived {
			fds, err := peer.receiver.ReceiveNow(peer.fd, &peer.hello)
			framing.CloseAll(fds)
			if errors.Is(err, unix.EAGAIN) {
				return
			}
			if err != nil {
				se.disconnect(peer)
				return
			}
			se.replyToHello(peer)
			continue
		}
		m := &collectorwire.Message{}
		fds, err := peer.receiver.ReceiveNow(peer.fd, m)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, framing.ErrNoFreeDescriptors):
			// An error reply ends the request. If the connection were closed instead, the agent would reconnect and
			// repeat the request.
			se.sendOrQueue(peer, &collectorwire.Message{Op: collectorwire.OpReply, ID: m.ID, Error: noDescriptorsText})
		case err != nil:
			se.disconnect(peer)
		case peer.hello.Version != se.ownHello.Version && m.Op != collectorwire.OpQuit:
			framing.CloseAll(fds)
			se.sendOrQueue(peer, &collectorwire.Message{Op: collectorwire.OpReply, ID: m.ID, Error: fmt.Sprintf("operation %q of version %d: the log collector has version %d", m.Op, peer.hello.Version, se.ownHello.Version)})
		default:
			se.executeRequest(peer, m, fds)
		}
	}
}

// replyToHello replies to an agent's hello message.
func (se *collectorServer) replyToHello(peer *agentConn) {
	peer.helloReceived = true
	se.hadAgent = true
	se.sendOrQueue(peer, se.ownHello)
	if peer.hello.Version != se.ownHello.Version {
		return
	}
	for _, e := range se.streamByKey {
		if e.writeFailure.isDropping {
			se.sendOrQueue(peer, e.lossMessage())
		}
	}
}

// executeRequest executes an agent's request. It owns fds.
func (se *collectorServer) executeRequest(peer *agentConn, m *collectorwire.Message, fds []int) {
	reply := &collectorwire.Message{Op: collectorwire.OpReply, ID: m.ID}
	switch m.Op {
	case collectorwire.OpStart:
		se.memoryTrimmer.NotifyBusy()
		if err := se.startStreams(m, fds); err != nil {
			reply.Error = err.Error()
		}
		fds = nil
		se.sendOrQueue(peer, reply)
	case collectorwire.OpStop:
		se.memoryTrimmer.NotifyBusy()
		e := se.streamByKey[m.StreamKey]
		if e == nil {
			se.sendOrQueue(peer, reply)
			break
		}
		e.addStopRequest(pendingReply{peer, m.ID}, time.Now().Add(time.Duration(m.GraceMillis)*time.Millisecond))
		e.keepsReadingWhileWriterOpen = m.KeepReadingWhileWriterOpen
		se.readyStreams[e] = true
	case collectorwire.OpQuit:
		se.quitRequested = true
	case collectorwire.OpIdle:
		se.quitRequested = len(se.streamByKey) == 0
	case collectorwire.OpStats:
		reply.StreamCount, reply.WrittenBytes, reply.LostBytes = se.countOutput()
		se.sendOrQueue(peer, reply)
	case collectorwire.OpSubscribe:
		se.notifyOrAddSubscriber(peer, m)
	default:
		reply.Error = fmt.Sprintf("operation %q is unknown", m.Op)
		se.sendOrQueue(peer, reply)
	}
	framing.CloseAll(fds)
}

// addStopRequest adds a request to end the stream as soon as it has no writer and no output, or else at the deadline. The
// earliest deadline counts.
func (s *serverStream) addStopRequest(w pendingReply, deadline time.Time) {
	if len(s.stopRequests) == 0 || deadline.Before(s.stopDeadline) {
		s.stopDeadline = deadline
	}
	s.stopRequests = append(s.stopRequests, w)
}

// notifyOrAddSubscriber sends one collectorwire.OpOutput to an agent as soon as a stream has output behind the position in m, which
// may be immediately.
func (se *collectorServer) notifyOrAddSubscriber(peer *agentConn, m *collectorwire.Message) {
	e := se.streamByKey[m.StreamKey]
	if e != nil {
		e.refreshFileSize()
	}
	switch {
	case e == nil: // an unknown stream has no output to report
	case e.fileIndex > m.FileIndex || e.fileIndex == m.FileIndex && e.fileSize != m.FileOffset: // also true after the file was truncated
		se.sendOrQueue(peer, &collectorwire.Message{Op: collectorwire.OpOutput, StreamKey: m.StreamKey, FileIndex: e.fileIndex, FileOffset: e.fileSize})
	case !slices.Contains(e.subscribers, peer):
		e.subscribers = append(e.subscribers, peer)
	}
}

// sendOrQueue sends or queues a message. It never blocks.
func (se *collectorServer) sendOrQueue(peer *agentConn, m any) {
	if peer.closed {
		return
	}
	b, err := collectorwire.MessageLimits.Encode(m)
	if err != nil {
		panic("log collector: message does not encode: " + err.Error()) // cannot happen, because every message can be encoded
	}
	peer.queuedMessages = append(peer.queuedMessages, b)
	if len(peer.queuedMessages) > maxQueuedMessages {
		se.disconnect(peer)
		return
	}
	if len(peer.queuedMessages) == 1 {
		se.sendQueued(peer)
	}
}

// broadcastToSameVersion sends a message to all agents with this process's protocol version.
func (se *collectorServer) broadcastToSameVersion(m *collectorwire.Message) {
	for _, peer := range se.agentsByFD {
		if peer.hello.Version == se.ownHello.Version {
			se.sendOrQueue(peer, m)
		}
	}
}

// sendQueued sends the queued messages until the socket would block.
func (se *collectorServer) sendQueued(peer *agentConn) {
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
			se.disconnect(peer)
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
	_ = unix.EpollCtl(se.epollFD, unix.EPOLL_CTL_MOD, peer.fd, &unix.EpollEvent{Events: events, Fd: int32(peer.fd)})
}

// disconnect closes the connection to an agent. The agent's streams continue.
func (se *collectorServer) disconnect(gone *agentConn) {
	if gone.closed {
		return
	}
	gone.closed = true
	gone.queuedMessages = nil
	gone.receiver.Close()
	unix.Close(gone.fd)
	delete(se.agentsByFD, int32(gone.fd))
	for _, e := range se.streamByKey {
		e.subscribers = slices.DeleteFunc(e.subscribers, func(p *agentConn) bool { return p == gone })
	}
	if len(se.agentsByFD) == 0 {
		se.nextIdleCheck = time.Now().Add(se.conf.LingerTimeout)
	}
}
