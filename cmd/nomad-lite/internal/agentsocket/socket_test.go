package agentsocket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// Commands do not use the socket of another account: a socket that another account owns, or
// can replace, is skipped.
func TestSocketsOfOtherUsersAreNotTrusted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make files of another user")
	}
	const otherUserID = 54321
	for name, c := range map[string]struct {
		change func(dir, socket string) error
		want   bool
	}{
		"of this user":                       {func(string, string) error { return nil }, true},
		"in another user's directory":        {func(dir, _ string) error { return os.Chown(dir, otherUserID, otherUserID) }, false},
		"in everybody's directory":           {func(dir, _ string) error { return os.Chmod(dir, 0o777) }, false},
		"in everybody's directory, sticky":   {func(dir, _ string) error { return os.Chmod(dir, os.ModeSticky|0o777) }, false},
		"in the directory of a group":        {func(dir, _ string) error { return errors.Join(os.Chown(dir, 0, otherUserID), os.Chmod(dir, 0o770)) }, false},
		"of another user":                    {func(_, socket string) error { return os.Chown(socket, otherUserID, otherUserID) }, false},
		"a link to another user's directory": {moveSocketToOtherUser, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			socket := DevSocketPaths()[0]
			dir := filepath.Dir(socket)
			if err := os.Mkdir(dir, 0o711); err != nil {
				t.Fatal(err)
			}
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			if err := c.change(dir, socket); err != nil {
				t.Fatal(err)
			}
			if conn, err := net.Dial("unix", socket); err != nil {
				t.Fatal(err) // the socket must accept connections, because the test is only about its owner and mode
			} else {
				conn.Close()
			}
			if got := isTrustedSocket(socket); got != c.want {
				t.Errorf("it is trusted: %v, want %v", got, c.want)
			}
			if got := FindConnectableSocket() == socket; got != c.want {
				t.Errorf("commands use it: %v, want %v", got, c.want)
			}
		})
	}
}

// A socket at which no process listens is used rather than none, so that commands do not fall back to the port, unless the user has
// no permission to connect to another.
func TestDefaultSocketOfKilledAgent(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	socket := DevSocketPaths()[0]
	if FindConnectableSocket() != "" {
		t.Skip("an agent runs on this machine")
	}
	if err := os.Mkdir(filepath.Dir(socket), 0o711); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if got := DefaultSocket(); got != socket {
		t.Errorf("socket %q, want %q", got, socket)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	listener.Close()
	if got := DefaultSocket(); got != socket {
		t.Errorf("after the end of the listener: socket %q, want %q", got, socket)
	}
	if got := FindConnectableSocket(); got != "" {
		t.Errorf("socket %q is connectable", got)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	if got := DefaultSocket(); got == socket {
		t.Error("a socket that does not exist is used")
	}
}

// moveSocketToOtherUser moves a socket to another user's directory, and leaves a link.
func moveSocketToOtherUser(dir, socket string) error {
	theirs := filepath.Join(filepath.Dir(dir), "theirs")
	moved := filepath.Join(theirs, FileName)
	return errors.Join(os.Mkdir(theirs, 0o711), os.Rename(socket, moved), os.Symlink(moved, socket), os.Chown(theirs, 54321, 54321))
}
