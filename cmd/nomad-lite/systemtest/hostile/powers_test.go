package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"golang.org/x/sys/unix"
)

// processLimits are the restrictions that a row of the table in SECURITY.md lists for a process.
type processLimits struct {
	isRoot           bool // the process has the user root, otherwise one of the default download_uids
	capabilities     uint64
	all              bool // the process has all capabilities of root
	syscallsFiltered bool // system calls are filtered
}

// capabilityBits are the capabilities in the table of SECURITY.md, with their bits.
var capabilityBits = map[string]uint64{
	"CAP_BLOCK_SUSPEND": 1 << unix.CAP_BLOCK_SUSPEND, "CAP_CHOWN": 1 << unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": 1 << unix.CAP_DAC_OVERRIDE, "CAP_FOWNER": 1 << unix.CAP_FOWNER, "CAP_FSETID": 1 << unix.CAP_FSETID,
	"CAP_KILL": 1 << unix.CAP_KILL, "CAP_SETGID": 1 << unix.CAP_SETGID, "CAP_SETUID": 1 << unix.CAP_SETUID,
	"CAP_SYS_ADMIN": 1 << unix.CAP_SYS_ADMIN, "CAP_SYS_PTRACE": 1 << unix.CAP_SYS_PTRACE,
}

// readProcessLimits reads the table of SECURITY.md. The keys are the command lines of the
// processes.
func readProcessLimits(t *testing.T) map[string]processLimits {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(systemtest.RepositoryDir(), "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]processLimits{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)`[^|]*\\|([^|]*)\\|([^|]*)\\|([^|]*)\\|$").FindAllStringSubmatch(string(text), -1) {
		p := processLimits{isRoot: strings.TrimSpace(row[2]) == "root", all: strings.HasPrefix(strings.TrimSpace(row[3]), "all"), syscallsFiltered: strings.TrimSpace(row[4]) != "none"}
		for _, name := range regexp.MustCompile("CAP_[A-Z_]+").FindAllString(row[3], -1) {
			bit, known := capabilityBits[name]
			if !known && !p.all {
				t.Fatalf("SECURITY.md: %s: unknown capability %s", row[1], name)
			}
			p.capabilities |= bit
		}
		rows[row[1]] = p
	}
	return rows
}

// check compares each thread of a process with a row of the table in SECURITY.md. The capabilities
// "all" mean those of the test process.
func (p processLimits) check(pid int) error {
	uids, err := idrange.ParseDownloadUIDs(idrange.DefaultDownloadUIDs)
	if err != nil {
		return err
	}
	all, err := readCapabilityBoundingSet("/proc/thread-self/status")
	if err != nil {
		return err
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		return fmt.Errorf("no threads: %w", err)
	}
	for _, path := range threads {
		status, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return err
		}
		var user uint32
		if _, rest, ok := bytes.Cut(status, []byte("\nUid:")); ok {
			if _, err := fmt.Sscan(string(rest[:16]), &user); err != nil {
				return err
			}
		}
		if p.isRoot != (user == 0) || !p.isRoot && !uids.Contains(user) {
			return fmt.Errorf("%s: the user is %d", path, user)
		}
		want := []string{"CapAmb:\t0000000000000000", fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d", user)}
		if p.syscallsFiltered {
			want = append(want, "NoNewPrivs:\t1", "Seccomp:\t2")
		}
		if !p.all {
			set := fmt.Sprintf("%016x", p.capabilities&all)
			want = append(want, "CapInh:\t0000000000000000")
			// A thread can have fewer capabilities than the row lists, such as the threads that
			// render templates.
			for _, name := range []string{"CapPrm", "CapEff"} {
				var has uint64
				if _, rest, ok := bytes.Cut(status, []byte("\n"+name+":\t")); ok {
					if _, err := fmt.Sscanf(string(rest[:16]), "%x", &has); err != nil {
						return err
					}
				}
				if has&^p.capabilities != 0 {
					want = append(want, name+":\t"+set)
				}
			}
			if p.isRoot { // no_new_privs keeps another user from capabilities in the bounding set
				want = append(want, "CapBnd:\t"+set)
			}
		}
		for _, line := range want {
			if !bytes.Contains(status, []byte("\n"+line+"\n")) {
				return fmt.Errorf("%s has no line %q:\n%s", path, line, status)
			}
		}
	}
	return nil
}

func readCapabilityBoundingSet(status string) (set uint64, err error) {
	text, err := os.ReadFile(status)
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "\nCapBnd:\t")
	_, err = fmt.Sscanf(rest, "%x", &set)
	return set, err
}

// processesWithArgs returns the descendants of the test whose command lines start with args.
func processesWithArgs(args string) (found []int) {
	parents := map[int]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // the process has exited
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		parents[pid], _ = strconv.Atoi(fields[1])
	}
	for pid := range parents {
		p := pid
		for p > 1 && p != os.Getpid() {
			p = parents[p]
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && p == os.Getpid() && strings.HasPrefix(strings.ReplaceAll(string(line), "\x00", " "), args+" ") {
			found = append(found, pid)
		}
	}
	return found
}

// Each process of an agent has the restrictions that SECURITY.md lists, in each of its threads.
func TestProcessPrivileges(t *testing.T) {
	if os.Geteuid() != 0 || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("needs root, which has capabilities, and filters of system calls")
	}
	rows := readProcessLimits(t)
	download := rows["artifact-download"]
	var checkOnce sync.Once
	checked := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		checkOnce.Do(func() {
			for _, pid := range processesWithArgs("nomad-lite artifact-download") {
				checked = true
				if err := download.check(pid); err != nil {
					t.Errorf("artifact-download: %v", err)
				}
				assertUntraceable(t, "artifact-download", pid)
			}
		})
		fmt.Fprint(w, "text")
	}))
	defer server.Close()
	s := systemtest.StartTestAgent(t, false, "plugin \"exec\" {}\nplugin \"script\" {\n  config {\n    commands = false\n  }\n}\n")
	isolated := systemtest.NewRawExecShellTask("isolated", "true; "+systemtest.SleepForeverScript, systemtest.WithExecDriver, func(task *api.Task) { task.User = "nobody" })
	alloc := s.RunJobUntilStatus("powers", "service", "running", isolated, systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript, func(task *api.Task) {
		task.Artifacts = []*api.TaskArtifact{{GetterSource: new(server.URL + "/a"), RelativeDest: new("local/artifact")}}
		task.Templates = []*api.Template{{EmbeddedTmpl: new("text"), DestPath: new("local/template")}}
		task.Meta = map[string]string{"lite_hook_script": `{"poststart": {"exec": ["true"]}}`}
	}))
	s.WaitUntil("the hook script has run", func() (string, bool) {
		for _, e := range s.ReadAlloc(alloc.ID).TaskStates["t"].Events {
			if strings.Contains(e.DisplayMessage, "poststart: true") {
				return "", true
			}
		}
		return "no event", false
	})
	if !checked {
		t.Error("no process downloads")
	}
	assertDumpable(t, "/bin/sh -c true;")
	seen := 0
	for args, row := range rows {
		if args == "artifact-download" {
			continue
		}
		pids := processesWithArgs("nomad-lite " + args)
		if len(pids) != 1 {
			t.Errorf("processes of %q: %v", args, pids)
			continue
		}
		seen++
		if err := row.check(pids[0]); err != nil {
			t.Errorf("%s: %v", args, err)
		}
		assertUntraceable(t, args, pids[0])
	}
	if seen < 8 {
		t.Errorf("SECURITY.md has %d rows of processes that run, want 8", seen)
	}
}
