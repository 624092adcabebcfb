package connlimit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
)

// addressedConn is a connection with other addresses.
type addressedConn struct {
	net.Conn
	local, remote net.Addr
}

func (c addressedConn) LocalAddr() net.Addr  { return c.local }
func (c addressedConn) RemoteAddr() net.Addr { return c.remote }

func TestAddressesOfPeers(t *testing.T) {
	server := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
	for text, want := range map[string]string{
		"10.0.0.2:5":                  "10.0.0.2",
		"10.0.0.1:5":                  "10.0.0.1", // this machine, and no process has the socket
		"[::ffff:10.0.0.2]:5":         "10.0.0.2",
		"[2001:db8:0:1::2]:5":         "2001:db8:0:1::/64",
		"[2001:db8:0:1:ffff::3%x]:80": "2001:db8:0:1::/64",
		"127.0.0.1:5":                 "loopback",
		"127.9.8.7:5":                 "loopback",
		"[::1]:5":                     "loopback",
	} {
		if got := identifyPeer(addressedConn{nil, server, address{"tcp", text}}); got != (ClientIdentity{Unauthenticated, want}) {
			t.Errorf("%s: %v, want %s", text, got, want)
		}
	}
	task := taskapi.TaskAddr{AllocID: "alloc", Task: "task"}
	if got, want := identifyPeer(addressedConn{nil, task, task}), (ClientIdentity{Task, "alloc/task"}); got != want {
		t.Errorf("socket of a task: %v, want %v", got, want)
	}
}

// asUser calls f in a thread running as user uid.
func asUser(uid int, f func()) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // only this thread changes its user, and it ends with its goroutine
		_, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
		if errno == 0 {
			f()
			result <- nil
		} else {
			result <- errno
		}
	}()
	return <-result
}

// connectTCP returns this thread's connected socket. net.Dial could use another thread.
func connectTCP(to netip.AddrPort) (fd int, err error) {
	if to.Addr().Is4() {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
		}
	} else if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	}
	return fd, err
}

// requireSockDiag skips a test on a kernel that does not report TCP socket users.
func requireSockDiag(t testing.TB, l net.Listener) {
	t.Helper()
	if _, err := querySockDiag(netip.MustParseAddrPort(l.Addr().String()), netip.AddrPort{}); err != nil {
		t.Skip("the kernel does not report users of sockets: ", err)
	}
}

func TestUsersOfPeers(t *testing.T) {
	users := []int{os.Geteuid()}
	if os.Geteuid() == 0 {
		users = append(users, 4242)
	}
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0", "0.0.0.0:0"} {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			t.Log(err) // without IPv6
			continue
		}
		defer l.Close()
		requireSockDiag(t, l)
		port := netip.MustParseAddrPort(l.Addr().String()).Port()
		for _, target := range []string{"127.0.0.1", "127.0.0.9", "::1", "::ffff:127.0.0.1"} {
			for _, uid := range users {
				var fd int
				var dialErr error
				if err := asUser(uid, func() { fd, dialErr = connectTCP(netip.AddrPortFrom(netip.MustParseAddr(target), port)) }); err != nil {
					t.Fatal(err)
				}
				if dialErr != nil {
					unix.Close(fd)
					continue // the listener does not listen at the address
				}
				conn, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				want := ClientIdentity{Unauthenticated, fmt.Sprint("uid ", uid)}
				if uid == os.Geteuid() {
					want.Class = Operator
				}
				if got := identifyPeer(conn); got != want {
					t.Errorf("user %d from %s to %s: %v, want %v", uid, conn.RemoteAddr(), listen, got, want)
				}
				// The kernel reports user 0 for a connection's socket after the client has closed it.
				unix.Close(fd)
				if got := identifyPeer(conn); got != (ClientIdentity{Unauthenticated, "loopback"}) {
					t.Errorf("user %d from %s to %s, closed: %v", uid, conn.RemoteAddr(), listen, got)
				}
				conn.Close()
			}
		}
	}
}

// A client's port may be that of a listening program, which is not the peer.
func TestListenerIsNoPeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	requireSockDiag(t, l)
	at := netip.MustParseAddrPort(l.Addr().String())
	if uid, err := tcpSocketUID(at, netip.MustParseAddrPort("127.0.0.1:9")); !errors.Is(err, errNoOwner) {
		t.Errorf("uid %d, %v", uid, err)
	}
}

func TestUnixPeersAreOperators(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, want := identifyPeer(conn), (ClientIdentity{Operator, fmt.Sprint("unix socket, uid ", os.Geteuid())}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// A client is not idle after its bytes have arrived, although a loaded server has not read them yet.
func TestUnreadBytesAreNotIdle(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	limited := newLimiter(maxConns, 0).LimitListener(l)
	defer limited.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := limited.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	conn := ConnOf(accepted)
	conn.readStartUnixNano.Store(1) // a Read has waited for decades
	if !conn.isIdleLocked() {
		t.Error("a client that has sent nothing is not idle")
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	raw, err := conn.Conn.(syscall.Conn).SyscallConn()
	if err == nil {
		// Blocks until the byte has arrived.
		err = raw.Read(func(fd uintptr) bool {
			n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return n > 0 || !errors.Is(err, unix.EAGAIN)
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	conn.readStartUnixNano.Store(1)
	if conn.isIdleLocked() {
		t.Error("a client whose byte has arrived is idle")
	}
}

// BenchmarkRequest measures a request over a new connection to the loopback address. Its baseline is the same request without a
// Limiter; identify is the part for the kernel's query.
func BenchmarkRequest(b *testing.B) {
	serve := func(b *testing.B, wrap func(net.Listener) net.Listener) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })}
		go server.Serve(wrap(l))
		defer server.Close()
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		for b.Loop() {
			answer, err := client.Get("http://" + l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			answer.Body.Close()
		}
	}
	b.Run("limited", func(b *testing.B) { serve(b, newLimiter(maxConns, 0).LimitListener) })
	b.Run("floor", func(b *testing.B) { serve(b, func(l net.Listener) net.Listener { return l }) })
	b.Run("identify", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		conn, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		for b.Loop() {
			identifyPeer(conn)
		}
	})
}
