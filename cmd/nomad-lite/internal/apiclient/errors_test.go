package apiclient

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
)

// The error names a socket that this user has no permission to open, with advice, also if
// the user has given no address.
func TestSocketWithoutPermission(t *testing.T) {
	socket := filepath.Join(t.TempDir(), agentsocket.FileName)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := os.Chmod(socket, 0); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		// Root has every permission, unless its thread accesses files as another user.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer unix.Setfsuid(0)
	}
	_, err = net.Dial("unix", socket)
	if got := agentsocket.DeniedSocketPath(fmt.Errorf("list jobs: %w", &url.Error{Op: "Get", URL: "http://127.0.0.1/v1/jobs", Err: err})); got != socket {
		t.Errorf("denied by %q, want %s (%v)", got, socket, err)
	}
	if text := unreachableAdvice(&url.Error{Op: "Get", URL: "http://127.0.0.1/v1/jobs", Err: err}); !strings.Contains(text, "permission denied for its socket "+socket) || strings.Contains(text, "Is an agent running?") {
		t.Errorf("advice %q", text)
	}
	missing := filepath.Join(filepath.Dir(socket), "missing")
	if got := agentsocket.FirstDeniedSocket([]string{"/nowhere/nomad.sock", socket, missing}); got != socket {
		t.Errorf("denied by %q, want %s", got, socket)
	}
	if got := agentsocket.FirstDeniedSocket([]string{"/nowhere/nomad.sock"}); got != "" {
		t.Errorf("denied by %q, which is not there", got)
	}
}
