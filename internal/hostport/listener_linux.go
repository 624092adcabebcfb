package hostport

import (
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/prometheus/procfs"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// Listener is a process that has a socket that listens.
type Listener struct {
	PID  int // 0 if /proc does not show which process has the socket, for example to a process that is not root
	UID  int // user who has opened the socket
	Name string
	Task osprocess.TaskEnvID // the task to which the process belongs; zero if it belongs to none
}

// String returns a description such as `process "nginx" (pid 812, uid 33), of task "web" of allocation 0b5a1c2d`.
func (l Listener) String() string {
	if l.PID == 0 {
		return fmt.Sprintf("a process of uid %d", l.UID)
	}
	text := fmt.Sprintf("process %q (pid %d, uid %d)", l.Name, l.PID, l.UID)
	if l.Task.AllocID != "" {
		text += fmt.Sprintf(", of task %q of allocation %.8s,", l.Task.Task, l.Task.AllocID)
	}
	return text
}

// FindListeners returns the processes that have the socket that listens with TCP on a port at an address of the host, or at all
// addresses. The host is an address or a name. If /proc shows none of the processes to this one, the result is one Listener without
// PID. It is empty if no socket listens.
func FindListeners(host string, port int) (listeners []Listener) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	address, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil
	}
	ip := address.AddrPort().Addr().Unmap()
	var socket *listeningSocket
	forEachListeningSocket(fs, func(s listeningSocket) {
		if s.isTCP && s.port == port && (s.address == ip || s.address.IsUnspecified() || ip.IsUnspecified()) {
			socket = &s
		}
	})
	if socket == nil {
		return nil
	}
	forEachSocketOfProcesses(fs, func(target string, p procfs.Proc) {
		if target != socketTarget(socket.inode) || slices.ContainsFunc(listeners, func(l Listener) bool { return l.PID == p.PID }) {
			return
		}
		// The errors are ignored: the process may have exited, and a listener without name and task is still of use.
		l := Listener{PID: p.PID, UID: socket.uid}
		l.Name, _ = p.Comm()
		l.Task, _ = osprocess.TaskOf(p.PID)
		listeners = append(listeners, l)
	})
	if len(listeners) == 0 {
		listeners = []Listener{{UID: socket.uid}}
	}
	return listeners
}
