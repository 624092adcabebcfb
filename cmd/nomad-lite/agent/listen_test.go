package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
	"github.com/nomad-lite/nomad-lite/runtime/agent/connlimit"
)

// connectAsUser connects to a unix socket as another user, with one additional group.
func connectAsUser(socket string, uid, gid, group uint32) error {
	result := make(chan error)
	go func() {
		// Only this thread changes its user. The thread ends with its goroutine.
		runtime.LockOSThread()
		result <- func() error {
			groups := []uint32{group}
			for _, call := range [][4]uintptr{
				{unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&groups[0]))},
				{unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)},
				{unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)},
			} {
				if _, _, errno := syscall.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
					return fmt.Errorf("become user %d: %w", uid, errno)
				}
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		}()
	}()
	return <-result
}

func TestSocketIsForTheGroupOfTheConfiguration(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to connect as other users")
	}
	const otherUserID, daemonGID = 4242, 1 // every Linux system has the group daemon
	for _, group := range []string{"", "daemon", "1"} {
		t.Run("group "+group, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "socket")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			if err := os.Chmod(dir, 0o711); err != nil {
				t.Fatal(err)
			}
			l := &apiListeners{connLimiter: connlimit.New(connlimit.Config{Logger: hclog.NewNullLogger()})}
			if err := l.addUnixSocket(dir, group, hclog.NewNullLogger()); err != nil {
				t.Fatal(err)
			}
			defer l.closeAndRemoveSocketFiles()
			socket := filepath.Join(dir, agentsocket.FileName)
			if err := connectAsUser(socket, otherUserID, otherUserID, otherUserID); !errors.Is(err, unix.EACCES) {
				t.Errorf("a stranger connects: %v", err)
			}
			err = connectAsUser(socket, otherUserID, otherUserID, daemonGID)
			if group == "" && !errors.Is(err, unix.EACCES) || group != "" && err != nil {
				t.Errorf("a member of the group connects: %v", err)
			}
		})
	}
	l := &apiListeners{}
	if err := l.addUnixSocket(t.TempDir(), "no such group", hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), `no group "no such group"`) {
		t.Errorf("a group that is not there: %v", err)
	}
}

// emptyKeeper is a keeper that stores nothing.
type emptyKeeper struct{}

func (emptyKeeper) StoreFD(context.Context, string, *os.File) error { return nil }
func (emptyKeeper) RemoveFD(context.Context, string) error          { return nil }
func (emptyKeeper) DuplicateStoredFD(string) (*os.File, error)      { return nil, keeper.ErrFDNotStored }

// A killed agent, or a child of it that has not executed its program yet, holds the address for a moment.
func TestListenWaitsForKilledAgent(t *testing.T) {
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { held.Close() })
	l, _, err := listenTCPRetryingIfInUse(t.Context(), emptyKeeper{}, held.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	if _, _, err := listenTCPRetryingIfInUse(interrupted, emptyKeeper{}, l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) || time.Since(began) >= killedAgentTimeout {
		t.Errorf("interrupted: %v after %v", err, time.Since(began))
	}
	if _, _, err := listenTCPRetryingIfInUse(t.Context(), emptyKeeper{}, l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("an address that stays in use: %v", err)
	}
}

// Servers and other nodes get no address of the API that only this machine can connect to.
func TestNodeOfClusterAnnouncesReachableAddress(t *testing.T) {
	tcp := func(address string) *apiListeners {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { l.Close() })
		return &apiListeners{tcpListener: l}
	}
	for name, c := range map[string]struct {
		listeners *apiListeners
		config    config.Config
		want      bool
	}{
		"only the unix socket":             {&apiListeners{}, config.Config{HTTPAdvertiseAddr: "10.0.0.1"}, false},
		"a loopback address":               {tcp("127.0.0.1:0"), config.Config{}, false},
		"a loopback address, advertised":   {tcp("127.0.0.1:0"), config.Config{HTTPAdvertiseAddr: "10.0.0.1"}, true},
		"all addresses":                    {tcp("0.0.0.0:0"), config.Config{}, true},
		"all addresses, another is public": {tcp("0.0.0.0:0"), config.Config{HTTPAdvertiseAddr: "10.0.0.1:80"}, true},
	} {
		if got := c.listeners.otherNodesCanConnect(&c.config); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// The error for a port that is in use names the process that has it.
func TestPortInUseNamesTheOwner(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	l := &apiListeners{connLimiter: connlimit.New(connlimit.Config{Logger: hclog.NewNullLogger()})}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	err = l.listenTCP(interrupted, emptyKeeper{}, &config.Config{HTTPPort: &port}, hclog.NewNullLogger())
	if want := fmt.Sprintf("(pid %d, uid %d) has it; ports { http = … }", os.Getpid(), os.Geteuid()); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want it to contain %q", err, want)
	}
}

// A listener without SO_REUSEADDR that has exited blocks the port until its connections expire: the error does not claim that a
// process has bound the port.
func TestPortInUseByExpiringConnections(t *testing.T) {
	noReuse := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) (err error) {
		controlErr := socket.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0) })
		return errors.Join(controlErr, err)
	}}
	earlier, err := noReuse.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer earlier.Close()
	client, err := net.Dial("tcp", earlier.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := earlier.Accept()
	if err != nil {
		t.Fatal(err)
	}
	accepted.Close() // the end that closes first keeps the port
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	client.Close()
	earlier.Close()
	port := earlier.Addr().(*net.TCPAddr).Port
	l := &apiListeners{connLimiter: connlimit.New(connlimit.Config{Logger: hclog.NewNullLogger()})}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	err = l.listenTCP(interrupted, emptyKeeper{}, &config.Config{HTTPPort: &port}, hclog.NewNullLogger())
	if want := "connections of an earlier listener have not expired"; !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want it to contain %q", err, want)
	}
}
