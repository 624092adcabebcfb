package logs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// A collector from another build or version exits before the next one is started, without a kill, and no
// output is lost or doubled.
func TestOtherCollectorQuits(t *testing.T) {
	t.Parallel()
	t.Run("of another build", func(t *testing.T) {
		t.Parallel()
		testOtherCollector(t, newOtherBuild(t))
	})
	// The program is the same, so that the version is the only reason to replace the collector. The keeper
	// has this version.
	t.Run("of the version before", func(t *testing.T) {
		t.Parallel()
		testOtherCollector(t, "/proc/self/exe", strconv.Itoa(collectorwire.ProtocolVersion-1))
	})
	t.Run("of the version after", func(t *testing.T) {
		t.Parallel()
		testOtherCollector(t, "/proc/self/exe", strconv.Itoa(collectorwire.ProtocolVersion+1))
	})
}

func testOtherCollector(t *testing.T, program string, version ...string) {
	s := newEmptyFixture(t)
	before := startAgentExecutable(t, s, program, version...)
	stdout := filepath.Join(fifoDir(s.logDir), collectorwire.StreamKey{Task: "web", Stream: Stdout}.FIFOName())
	f := s.openFIFO(stdout)
	s.writeText(f, "one\n")
	s.awaitOutput(Stdout, "one\n")
	killProcess(t, before.process)
	s.writeText(f, "two\n")

	s.newCollector(Config{}, false)
	defer s.makeKeeperEphemeral()
	s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	s.writeText(f, "three\n")
	s.awaitOutput(Stdout, "one\ntwo\nthree\n")
	if s.collector.LastProcess() == before.collector {
		t.Errorf("process %v of another build is still the collector", before.collector)
	}
	if status, err := s.keeper.Wait(t.Context(), before.collector); err != nil || status != (osprocess.ExitStatus{}) {
		t.Errorf("the collector of another build ended with %v, %v", status, err)
	}
	f.Close()
	s.stopTask()
}

// newOtherBuild returns a copy of this program with different content.
func newOtherBuild(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "another")
	// A child that another test starts must not inherit the file while it is open for writing,
	// because the kernel does not execute such a file.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, append(b, "another build"...), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// foreignCollectorMain is a collector process with a version far from this one. It is written with literal
// texts, because the stable messages must keep their form. It writes each received message to the file
// "received" in its directory, and exits after the message Quit.
func foreignCollectorMain(path string) error {
	dir, err := keeper.OpenOrCreateDataDir(path)
	if err != nil {
		return err
	}
	self, err := osprocess.LookupID(os.Getpid())
	if err != nil {
		return err
	}
	lock, err := dir.LockFile("collector.pid", unix.LOCK_EX)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(lock, `{"PID":%d,"StartTime":%d}`, self.PID, self.StartTime); err != nil {
		return err
	}
	listener, err := dir.ListenReplacingSocket("collector.sock")
	if err != nil {
		return err
	}
	received, err := os.Create(filepath.Join(path, "received"))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		socket, err := listener.AcceptUnix()
		if err != nil {
			return err
		}
		conn := framing.NewConn(socket, framing.Limits{MaxSize: 1 << 20, MaxDescriptors: 8})
		for {
			var text json.RawMessage
			if _, err := conn.Receive(&text); err != nil {
				break
			}
			if _, err := fmt.Fprintf(received, "%s\n", text); err != nil {
				return err
			}
			var m struct {
				Op string
			}
			if err := json.Unmarshal(text, &m); err != nil {
				return err
			}
			switch m.Op {
			case "":
				err = conn.Send(json.RawMessage(fmt.Sprintf(`{"Later":[1],"Version":99,"Build":"later","Role":"Collector","Process":{"PID":%d,"StartTime":%d}}`, self.PID, self.StartTime)))
			case "Quit":
				return nil
			}
			if err != nil {
				return err
			}
		}
	}
}

// An agent sends a collector with another version no message that it could misread.
func TestForeignCollectorQuits(t *testing.T) {
	t.Parallel()
	s := newEmptyFixture(t)
	cmd := exec.Command("/proc/self/exe", "foreign-collector", s.runDir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	if _, err := out.Read(make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	go func() { exited <- cmd.Wait() }()
	s.newCollector(Config{}, true)
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	f := s.openFIFO(stdout)
	s.writeText(f, "one\n")
	s.awaitOutput(Stdout, "one\n")
	if err := <-exited; err != nil {
		t.Errorf("the collector of another version: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(s.runDir, "received"))
	if err != nil {
		t.Fatal(err)
	}
	// The agent connects twice: before there is a task, it starts and replaces no collector.
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i, line := range lines {
		if quit := strings.Contains(line, `"Op":"Quit"`); quit != (i == len(lines)-1) || !quit && !strings.HasPrefix(line, `{"Version":`) {
			t.Errorf("the process of another version received %q", lines)
		}
	}
	f.Close()
	s.stopTask()
}

// A collector process executes no request from another version but the one that ends it.
func TestAgentsOfAnotherVersion(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	f := s.openFIFO(stdout)
	s.writeText(f, "one\n")
	s.awaitOutput(Stdout, "one\n")
	old := s.collector.LastProcess()
	for _, version := range []int{collectorwire.ProtocolVersion - 1, collectorwire.ProtocolVersion + 1} {
		l, err := (&CollectorClient{dir: s.collector.dir, conf: Config{testProtocolVersion: version}}).dialProcess(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		k := collectorwire.StreamKey{AllocID: "a1", Task: "web", Stream: Stdout}
		for _, m := range []collectorwire.Message{{Op: collectorwire.OpStart, StreamKey: k}, {Op: collectorwire.OpStop, StreamKey: k}, {Op: collectorwire.OpStats}, {Op: "Later"}} {
			if _, err := l.call(t.Context(), &m); err == nil || !strings.Contains(err.Error(), "version") {
				t.Errorf("%s of version %d: %v", m.Op, version, err)
			}
		}
		if version > collectorwire.ProtocolVersion {
			if err := l.send(&collectorwire.Message{Op: collectorwire.OpQuit}); err != nil {
				t.Error(err)
			}
			if status, err := s.keeper.Wait(t.Context(), old); err != nil || status != (osprocess.ExitStatus{}) {
				t.Errorf("after Quit of version %d: %v, %v", version, status, err)
			}
		}
		l.close()
	}
	s.writeText(f, "two\n")
	s.awaitOutput(Stdout, "one\ntwo\n")
	f.Close()
	s.stopTask()
}

// The messages belong to their version: a change in form needs another version, and then this list is
// changed with it.
func TestMessagesOfTheVersion(t *testing.T) {
	want := []string{
		"version 3",
		"Op collectorwire.Op", "ID uint64", "Key collectorwire.StreamKey", "GraceMillis int64", "KeepOpen bool", "HasWriter bool", "Limits map[collectorwire.Stream]collectorwire.StreamLimits", "Index int64", "Offset int64",
		"Error string", "Bytes int64", "WritingResumed bool", "Streams int", "Written int64", "Lost int64",
		"MaxFiles int", "MaxFileSize int64",
		"AllocID string", "Task string", "Stream collectorwire.Stream",
	}
	got := []string{fmt.Sprintf("version %d", collectorwire.ProtocolVersion)}
	for _, v := range []any{collectorwire.Message{}, StreamLimits{}, collectorwire.StreamKey{}} {
		typ := reflect.TypeOf(v)
		for i := range typ.NumField() {
			f := typ.Field(i)
			jsonKey, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			got = append(got, cmp.Or(jsonKey, f.Name)+" "+f.Type.String())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
