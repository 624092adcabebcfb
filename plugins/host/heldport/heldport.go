package heldport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// Keys under which the keeper stores the sockets.
const (
	listenerKey = "api/listener"
	guardKey    = "api/guard"
)

// Keeper stores descriptors that outlive the agent.
type Keeper interface {
	StoreFD(ctx context.Context, key string, f *os.File) error
	DuplicateStoredFD(key string) (*os.File, error)
	RemoveFD(ctx context.Context, key string) error
}

// Listen returns a TCP listener for address, HOST:PORT: the one that the keeper stores, if it has this address, or a new one, which
// Listen stores. The keeper releases a stored socket with another address only when the new one listens. With the port 0, an agent
// gets the port of the agent before it.
//
// Beside a loopback address, Listen binds the other one, [::1] or 127.0.0.1, to which some clients connect first: a guard, which
// does not listen, so that the kernel refuses connections. If guardErr is not nil, it is not bound, and another process can listen
// there.
func Listen(ctx context.Context, k Keeper, address string) (l net.Listener, guardErr, err error) {
	want, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, nil, err
	}
	storedListener, err := duplicateStored(k, listenerKey)
	if err != nil {
		return nil, nil, err
	}
	defer storedListener.Close() // a nil file has nothing to close
	storedGuard, err := duplicateStored(k, guardKey)
	if err != nil {
		return nil, nil, err
	}
	defer storedGuard.Close()

	var stored []*os.File // sockets with the wanted port, but another address
	if storedListener != nil {
		if l, err = net.FileListener(storedListener); err != nil {
			return nil, nil, fmt.Errorf("take the port of the API: %w", err)
		}
		current := l.Addr().(*net.TCPAddr) // only Listen stores descriptors under the key
		if isSameAddress(current, want) {
			if storedGuard == nil {
				guardErr = storeGuard(ctx, k, current)
			}
			return l, guardErr, nil
		}
		l.Close()
		if current.Port == want.Port {
			stored = append(stored, storedListener)
			if storedGuard != nil {
				stored = append(stored, storedGuard)
			}
		}
	}
	return listenAndStore(ctx, k, want, stored)
}

// duplicateStored returns a stored socket, or nil if there is none.
func duplicateStored(k Keeper, key string) (*os.File, error) {
	f, err := k.DuplicateStoredFD(key)
	if errors.Is(err, keeper.ErrFDNotStored) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take the port of the API: %w", err)
	}
	return f, nil
}

// isSameAddress reports whether a listener with the address current serves want, whose port can be 0.
func isSameAddress(current, want *net.TCPAddr) bool {
	// net.Listen makes the same socket of 0.0.0.0 and [::].
	sameIP := current.IP.Equal(want.IP) && current.Zone == want.Zone || current.IP.IsUnspecified() && want.IP.IsUnspecified()
	return sameIP && (current.Port == want.Port || want.Port == 0)
}

// listenAndStore opens and stores the listener and its guard in place of the stored sockets. The sockets in beside have the same
// port; of their addresses and the new ones, one can include the other.
func listenAndStore(ctx context.Context, k Keeper, want *net.TCPAddr, beside []*os.File) (l net.Listener, guardErr, err error) {
	sockets, err := openSockets(ctx, want, beside)
	if err != nil {
		return nil, nil, err
	}
	defer sockets.guard.Close()
	listenerFD, err := keeperwire.DuplicateFile(sockets.listener)
	if err == nil {
		f := os.NewFile(uintptr(listenerFD), listenerKey)
		err = k.StoreFD(ctx, listenerKey, f)
		f.Close()
	}
	if err == nil && sockets.guard != nil {
		err = k.StoreFD(ctx, guardKey, sockets.guard)
	} else if err == nil {
		err = k.RemoveFD(ctx, guardKey) // the guard of the former address
	}
	if err != nil {
		sockets.listener.Close()
		return nil, nil, fmt.Errorf("store the port of the API: %w", err)
	}
	return sockets.listener, sockets.guardErr, nil
}

// openedSockets are a listener and its guard.
type openedSockets struct {
	listener *net.TCPListener
	guard    *os.File // nil if the address has no guard, or with guardErr
	guardErr error
}

// openSockets opens a listener and its guard. During the call, but not afterwards, processes of this user can bind the port if
// beside is not empty.
func openSockets(ctx context.Context, want *net.TCPAddr, beside []*os.File) (s openedSockets, err error) {
	defer func() {
		if err != nil && s.listener != nil {
			s.listener.Close()
			s.guard.Close()
		}
	}()
	var config net.ListenConfig
	config.SetMultipathTCP(false) // only TCP has the rules by which sockets share a port here
	if len(beside) > 0 {
		config.Control = func(_, _ string, socket syscall.RawConn) error { return setReusePort(socket, 1) }
	}
	err = setReusePortOf(beside, 1)
	var l net.Listener
	if err == nil {
		l, err = config.Listen(ctx, "tcp", want.String())
	}
	if err == nil {
		s.listener = l.(*net.TCPListener)
		s.guard, s.guardErr = bindGuard(s.listener.Addr().(*net.TCPAddr), len(beside) > 0)
	}
	err = errors.Join(err, setReusePortOf(beside, 0))
	if err != nil || len(beside) == 0 {
		return s, err
	}
	raw, err := s.listener.SyscallConn()
	if err == nil {
		err = setReusePort(raw, 0)
	}
	if s.guard != nil {
		err = errors.Join(err, setReusePortOf([]*os.File{s.guard}, 0))
	}
	forbidPortReuse(s.listener.Addr().(*net.TCPAddr))
	return s, err
}

func setReusePortOf(sockets []*os.File, value int) error {
	var errs []error
	for _, f := range sockets {
		raw, err := f.SyscallConn()
		if err == nil {
			err = setReusePort(raw, value)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func setReusePort(socket syscall.RawConn, value int) (err error) {
	controlErr := socket.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, value))
	})
	return errors.Join(controlErr, err)
}

// forbidPortReuse makes the kernel discard that a socket with SO_REUSEPORT was bound last to a port: otherwise it lets each
// process of this user bind the port without comparing it with the sockets that have it. A socket without the option that is
// bound to the port has this effect, and only a socket in the state of TCP_REPAIR can be bound to a port that is taken; this needs
// CAP_NET_ADMIN, without which nothing is done.
func forbidPortReuse(address *net.TCPAddr) {
	fd, err := newSocket(address)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1) == nil {
		_ = unix.Bind(fd, sockaddr(address)) // it fails for an address that was removed meanwhile, whose port nothing can reach
	}
}

// storeGuard binds and stores the guard of the listener at served.
func storeGuard(ctx context.Context, k Keeper, served *net.TCPAddr) error {
	guard, err := bindGuard(served, false)
	if guard == nil {
		return err
	}
	defer guard.Close()
	return k.StoreFD(ctx, guardKey, guard)
}

// bindGuard binds the guard of the listener at served, with SO_REUSEPORT if sharesPort is true. It returns nil if the address has no
// guard: it is no loopback address, or the machine has only one of the two.
//
// Two sockets with SO_REUSEADDR can be bound to the same address until one of them listens, which a guard does not. So the guard has
// this option only while it is bound beside a listener that includes its address, whose old connections would refuse the bind.
func bindGuard(served *net.TCPAddr, sharesPort bool) (*os.File, error) {
	if !served.IP.IsLoopback() {
		return nil, nil
	}
	other := &net.TCPAddr{IP: net.IPv6loopback, Port: served.Port}
	if served.IP.To4() == nil {
		other.IP = net.IPv4(127, 0, 0, 1)
	}
	fd, err := newSocket(other)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bind %s: %w", other, err)
	}
	shares := 0
	if sharesPort {
		shares = 1
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, shares), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, shares))
	if err == nil {
		err = errors.Join(unix.Bind(fd, sockaddr(other)), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0))
	}
	if err != nil {
		unix.Close(fd)
	}
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bind %s: %w", other, err)
	}
	return os.NewFile(uintptr(fd), guardKey), nil
}

// newSocket returns a TCP socket for one address, which does not include addresses of the other IP version.
func newSocket(address *net.TCPAddr) (fd int, err error) {
	family := unix.AF_INET6
	if address.IP.To4() != nil {
		family = unix.AF_INET
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil || family == unix.AF_INET {
		return fd, err
	}
	if err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
		unix.Close(fd)
	}
	return fd, err
}

func sockaddr(address *net.TCPAddr) unix.Sockaddr {
	if ip := address.IP.To4(); ip != nil {
		return &unix.SockaddrInet4{Port: address.Port, Addr: [4]byte(ip)}
	}
	return &unix.SockaddrInet6{Port: address.Port, Addr: [16]byte(address.IP.To16())}
}
