package agent

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
)

// A power failure can leave the file of a token empty or with zero bytes.
func TestEmptyTokenFileGetsNewToken(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "blank": " \n", "zero bytes": strings.Repeat("\x00", 37)} {
		path := filepath.Join(t.TempDir(), TokenFile)
		if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		token, made, err := readOrMakeToken(path, hclog.NewNullLogger())
		if err != nil || !made || len(token) != 36 {
			t.Errorf("%s: token of %d bytes, made %t, error %v", name, len(token), made, err)
			continue
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: mode %v, error %v, want the mode of the operator", name, info.Mode(), err)
		}
		again, made, err := readOrMakeToken(path, hclog.NewNullLogger())
		if err != nil || made || again != token {
			t.Errorf("%s: the next agent has another token (made %t, error %v)", name, made, err)
		}
	}
}

func TestTokenIsNotWrittenToDevice(t *testing.T) {
	path := filepath.Join(t.TempDir(), TokenFile)
	if err := os.Symlink(os.DevNull, path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readOrMakeToken(path, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

// An agent starts on a full disk without its token, and stores none that a later agent would read as another one.
func TestTokenOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a disk")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 4<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, TokenFile)
	token, made, err := readOrMakeToken(path, hclog.NewNullLogger())
	if err != nil || made || len(token) != 36 {
		t.Errorf("token of %d bytes, made %t, error %v", len(token), made, err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file of the token: %v", err)
	}
}

// An agent that asks for no token over TCP names the setting at each start.
func TestDisabledAccessControlIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.hcl")
	if err := os.WriteFile(path, []byte("\nacl {\n  enabled = false\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, diags := config.Load([]string{path}, nil, false)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	var log bytes.Buffer
	l := &apiListeners{tcpListener: tcp}
	token, _, err := l.loadOrMakeTokens(c, t.TempDir(), &cli.Streams{Err: &log}, hclog.New(&hclog.LoggerOptions{Output: &log}))
	if err != nil || token != "" {
		t.Errorf("token of %d bytes, error %v", len(token), err)
	}
	for _, want := range []string{"[WARN]", path + ":3", tcp.Addr().String(), "can run programs as the user of this agent"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in %q", want, log.String())
		}
	}
}
