package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// foreignKeeperMain is the keeper of a version far from this one. It is written with literal texts,
// because the stable messages must keep their form. It writes each message that it receives to the file
// "received" in its directory. If mode is "refuse", it does not execute another program; if mode is "refuse-nameless", its hello message
// lacks its process, too.
func foreignKeeperMain(path, mode string) int {
	err := func() error {
		dir, err := OpenOrCreateDataDir(path)
		if err != nil {
			return err
		}
		self, err := osprocess.LookupID(os.Getpid())
		if err != nil {
			return err
		}
		lock, err := dir.LockFile("keeper.pid", unix.LOCK_EX)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(lock, `{"PID":%d,"StartTime":%d}`, self.PID, self.StartTime); err != nil {
			return err
		}
		listener, err := dir.ListenReplacingSocket("keeper.sock")
		if err != nil {
			return err
		}
		received, err := os.Create(filepath.Join(path, "received"))
		if err != nil {
			return err
		}
		fmt.Println("ready")
		var conn *framing.Conn // the connection of the last client
		for {
			if conn == nil {
				socket, err := listener.AcceptUnix() // until the client kills this process
				if err != nil {
					return err
				}
				conn = framing.NewConn(socket, framing.Limits{MaxSize: 1 << 20, MaxDescriptors: 8})
			}
			var text json.RawMessage
			fds, err := conn.Receive(&text)
			if err != nil {
				conn.Close()
				conn = nil
				continue
			}
			if _, err := fmt.Fprintf(received, "%s\n", text); err != nil {
				return err
			}
			var m struct {
				ID   uint64
				Op   string
				Args []string
			}
			if err := json.Unmarshal(text, &m); err != nil {
				return err
			}
			switch {
			case m.Op == "" && mode == "refuse-nameless":
				err = conn.Send(json.RawMessage(`{"Version":99,"Build":"earlier"}`))
			case m.Op == "":
				err = conn.Send(json.RawMessage(fmt.Sprintf(`{"Later":[1],"Version":99,"Build":"later","Role":"Keeper","Process":{"PID":%d,"StartTime":%d}}`, self.PID, self.StartTime)))
			case m.Op == "ReplaceProgram" && mode == "execute":
				return executeForeign(path, fds[0], m.Args, listener, lock, dir)
			default:
				err = conn.Send(json.RawMessage(fmt.Sprintf(`{"ID":%d,"Error":"this keeper cannot","Later":1}`, m.ID)))
			}
			if err != nil {
				return err
			}
		}
	}()
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// executeForeign executes another program in place of a foreign keeper, with a pipe that it stores, and the
// exit statuses of two processes.
func executeForeign(path string, program int, args []string, listener syscall.Conn, lock *os.File, dir *DataDir) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	if _, err := w.WriteString("before"); err != nil {
		return err
	}
	stored, err := keeperwire.DuplicateFile(r)
	if err != nil {
		return err
	}
	socket, err := keeperwire.DuplicateFile(listener)
	if err != nil {
		return err
	}
	state, err := unix.MemfdCreate("state", 0)
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`{"Later":{"A":1},"Version":99,"StoredFDs":[{"Key":"fifo","FD":%d,"DrainWithoutAgent":false,"Later":1}],
		"ManagedProcs":null,"SpawnedProcs":[{"PID":4000001,"StartTime":1}],"Programs":null,
		"SessionLeaderStatuses":[{"Process":{"PID":4000002,"StartTime":2},"Status":{"ExitCode":7,"Signal":0}}],
		"NonLeaderStatuses":[{"Process":{"PID":4000003,"StartTime":3},"Status":{"ExitCode":0,"Signal":9}}]}`, stored)
	if _, err := unix.Write(state, []byte(text)); err != nil {
		return err
	}
	if _, err := unix.Seek(state, 0, io.SeekStart); err != nil {
		return err
	}
	fds := []int{stored, socket, state, int(lock.Fd()), int(dir.Handle().Fd())}
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return err
		}
	}
	setup := fmt.Sprintf(`{"Dir":%q,"Ephemeral":false,"IdleTimeout":60000000000,"Later":true,"Handoff":{"ListenerFD":%d,"StateFD":%d,"LockFD":%d,"DirFD":%d}}`,
		path, socket, state, fds[3], fds[4])
	return syscall.Exec(safepath.ProcPath(program), args, append(os.Environ(), "NOMAD_LITE_KEEPER_SETUP="+setup))
}

// startForeignKeeper starts a foreign keeper, and returns its process and its directory.
func startForeignKeeper(t *testing.T, mode string) (osprocess.ID, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	cmd := exec.Command("/proc/self/exe", "foreign-keeper", dir, mode)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := osprocess.LookupID(cmd.Process.Pid)
	if err == nil {
		_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	}
	if err := errors.Join(err, cmd.Process.Release()); err != nil {
		t.Fatal(err)
	}
	return p, dir
}

// expectStableMessages checks that a foreign process has received hello messages and the request op, and
// nothing else.
func expectStableMessages(t *testing.T, dir string, op string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "received"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], fmt.Sprintf(`{"Version":%d,"Build":`, keeperwire.ProtocolVersion)) || !strings.Contains(lines[1], fmt.Sprintf(`"Op":%q`, op)) {
		t.Errorf("the process of another version received %q", lines)
	}
}

// An agent sends a keeper of another version no message that the keeper could misread, and gets what the
// keeper hands over.
func TestForeignKeeperIsReplacedInPlace(t *testing.T) {
	t.Parallel()
	keeper, dir := startForeignKeeper(t, "execute")
	c := startClient(t, Config{DataDir: dir})
	expectStableMessages(t, dir, "ReplaceProgram")
	if c.Status().KeeperProcess != keeper {
		t.Errorf("the keeper is %v, was %v", c.Status().KeeperProcess, keeper)
	}
	for p, want := range map[osprocess.ID]osprocess.ExitStatus{{PID: 4000002, StartTime: 2}: {ExitCode: 7}, {PID: 4000003, StartTime: 3}: {Signal: 9}} {
		if got, err := c.Wait(t.Context(), p); got != want || err != nil {
			t.Errorf("status of process %d: %v, %v; want %v", p.PID, got, err, want)
		}
	}
	held, err := c.DuplicateStoredFD("fifo")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	b := make([]byte, 6)
	if _, err := io.ReadFull(held, b); err != nil || string(b) != "before" {
		t.Errorf("read %q, %v", b, err)
	}
}

// A keeper of another version that cannot execute another program is killed, because the agent cannot use it, also if its hello message
// does not name its process.
func TestForeignKeeperThatCannotBeReplacedIsKilled(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"refuse", "refuse-nameless"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			keeper, dir := startForeignKeeper(t, mode)
			done := make(chan struct{})
			go func() { // the foreign keeper is a child of this process
				defer close(done)
				_, _ = unix.Wait4(keeper.PID, nil, 0, nil)
			}()
			t.Cleanup(func() { _ = keeper.Signal(unix.SIGKILL) })
			c := startClient(t, Config{DataDir: dir})
			<-done
			expectStableMessages(t, dir, "ReplaceProgram")
			if c.Status().KeeperProcess == keeper || keeper.Alive() {
				t.Errorf("the keeper of another version is still there: %v", keeper)
			}
		})
	}
}

// A keeper executes the stable requests of clients of other versions, and no other.
func TestClientsOfAnotherVersion(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	ended, err := c.Spawn(t.Context(), sh("exit 6"))
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []int{keeperwire.ProtocolVersion - 1, keeperwire.ProtocolVersion + 1} {
		agent := &Client{isAgent: true, cfg: Config{testProtocolVersion: version}}
		socket, err := c.dialKeeper()
		if err != nil {
			t.Fatal(err)
		}
		l, err := newClientConn(t.Context(), socket, agent.hello())
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range []keeperwire.Op{keeperwire.OpListFDs, keeperwire.OpSpawn, keeperwire.OpRemoveFD, keeperwire.OpSetEphemeral, keeperwire.OpAdoptProcesses} {
			if resp, _, err := l.call(t.Context(), &keeperwire.Request{Op: op, Spawn: &keeperwire.SpawnParams{Path: "/bin/true"}}); err != nil || !strings.Contains(resp.Error, "version") {
				t.Errorf("%s of version %d: %+v, %v", op, version, resp, err)
			}
		}
		if resp, _, err := l.call(t.Context(), &keeperwire.Request{Op: keeperwire.OpReplaceProgram}); err != nil || !strings.HasPrefix(resp.Error, "replace keeper") {
			t.Errorf("ReplaceProgram of version %d: %+v, %v", version, resp, err)
		}
		l.closeAndWait()

		plugin := &Client{cfg: Config{testProtocolVersion: version}}
		if socket, err = c.dialKeeper(); err != nil {
			t.Fatal(err)
		}
		if l, err = newClientConn(t.Context(), socket, plugin.hello()); err != nil {
			t.Fatal(err)
		}
		if resp, _, err := l.call(t.Context(), &keeperwire.Request{Op: keeperwire.OpWait, Process: ended}); err != nil || resp.Err() != nil || resp.Status.ExitCode != 6 {
			t.Errorf("Wait of version %d: %+v, %v", version, resp, err)
		}
		if resp, _, err := l.call(t.Context(), &keeperwire.Request{Op: keeperwire.OpListEndedSessionLeaders}); err != nil || resp.Err() != nil || len(resp.EndedProcesses) != 1 || resp.EndedProcesses[0].Process != ended {
			t.Errorf("ListEndedSessionLeaders of version %d: %+v, %v", version, resp, err)
		}
		l.closeAndWait()
	}
}

// The messages belong to their version: a change of their form needs another version, and then this list is
// changed with it, except for a further field of a stable message. Stable messages are checked by
// TestForeignKeeperIsReplacedInPlace.
func TestMessagesOfTheVersion(t *testing.T) {
	want := []string{
		"version 3",
		"Request ID uint64, Op keeperwire.Op, Spawn *keeperwire.SpawnParams, Process osprocess.ID, Keys []string, DrainWithoutAgent []bool, ManagedProcs []osprocess.ID, Args []string, StartTime uint64",
		"SpawnParams Name string, Path string, Args []string, Env []string, Dir string, HasExec bool, HasStdin bool, HasStdout bool, HasStderr bool, KillOnDisconnect bool",
		"Response ID uint64, Error string, Code keeperwire.ResponseCode, Errno int, Process osprocess.ID, Status osprocess.ExitStatus, Keys []string, DrainWithoutAgent []bool, ParentProcesses []osprocess.ID, EndedProcesses []keeperwire.EndedProcess, Ephemeral bool, CompleteSince uint64, KeeperPID int",
	}
	got := []string{fmt.Sprintf("version %d", keeperwire.ProtocolVersion)}
	for _, v := range []any{keeperwire.Request{}, keeperwire.SpawnParams{}, keeperwire.Response{}} {
		typ := reflect.TypeOf(v)
		var fields []string
		for i := range typ.NumField() {
			fields = append(fields, typ.Field(i).Name+" "+typ.Field(i).Type.String())
		}
		got = append(got, typ.Name()+" "+strings.Join(fields, ", "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
