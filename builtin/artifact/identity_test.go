package artifact

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
)

// runSnoopingTask simulates a malicious task of another user. At the first input line it
// searches for a download below outer, and prints what it could access. At the second
// input line it writes to all files that it could open.
func runSnoopingTask(outer, secret string) int {
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	var got []string
	add := func(what string) {
		if !slices.Contains(got, what) {
			got = append(got, what)
		}
	}
	files := map[string]*os.File{}
	pids, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range pids {
		line, _ := os.ReadFile(dir + "/cmdline")
		if bytes.Contains(line, []byte(secret)) && !bytes.Contains(line, []byte("\x00spy\x00")) {
			add("the word in the arguments of " + string(line))
		}
		if !bytes.HasSuffix(line, []byte("\x00download\x00")) {
			continue
		}
		if _, err := os.ReadFile(dir + "/environ"); err == nil {
			add("the environment")
		}
		if f, err := os.OpenFile(dir+"/mem", os.O_RDWR, 0); err == nil {
			f.Close()
			add("the memory")
		}
		if f, err := os.Open(dir + "/fd/3"); err == nil {
			f.Close()
			add("a descriptor")
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && unix.Kill(pid, 0) == nil {
			add("the right to kill it")
		}
	}
	// A real task could read the names of these directories in /proc.
	stages, _ := filepath.Glob(outer + "/allocs/a1/*/.artifact-*")
	for _, stage := range stages {
		_ = filepath.WalkDir(stage, func(name string, e os.DirEntry, err error) error {
			if err == nil && name != stage {
				add("a list of the files")
			}
			if err == nil && !e.IsDir() {
				if f, err := os.OpenFile(name, os.O_RDWR, 0); err == nil {
					files[name] = f
					add("a file to write to")
				}
			}
			return nil
		})
	}
	fmt.Println(len(stages), strings.Join(got, ", "))
	in.Scan()
	for _, f := range files {
		_, _ = f.WriteAt([]byte("evil"), 0)
	}
	fmt.Println("done")
	return 0
}

// startSnoopingTask starts runSnoopingTask in a process of user 65534. Each call of the
// returned function sends an input line to the process, and returns its output.
func startSnoopingTask(t *testing.T, outer, secret string) func() string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root makes downloads as somebody else, and tasks as nobody")
	}
	exe := filepath.Join(t.TempDir(), "spy") // a copy that user 65534 can execute
	for dir := filepath.Dir(exe); dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(exe, program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "spy", outer, secret)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyID, Gid: nobodyID}}
	cmd.Stderr = os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("spy: %v", err)
		}
	})
	return func() string {
		if _, err := io.WriteString(in, "\n"); err != nil || !lines.Scan() {
			t.Errorf("the spy is gone: %v, %v", err, lines.Err())
		}
		return lines.Text()
	}
}

// A task of user 65534 has no access to the download of another task, neither
// while the download runs nor after its checksum was compared (R10).
func TestOtherTaskCannotReadDownload(t *testing.T) {
	for _, c := range []struct {
		name, file string
		options    func(sum string) map[string]string
		content    func(t *testing.T) []byte
		want       string
	}{
		{"a file with a checksum", "/run.sh", func(sum string) map[string]string { return optionMap("checksum", sum) },
			func(*testing.T) []byte { return []byte("good one") }, "run.sh"},
		{"a file", "/run.sh", func(string) map[string]string { return nil },
			func(*testing.T) []byte { return []byte("good one") }, "run.sh"},
		{"an archive with a checksum", "/x.tar", func(sum string) map[string]string { return optionMap("checksum", sum) },
			func(t *testing.T) []byte {
				return makeTar(t, archiveEntry{name: "run.sh", content: "good one", mode: 0o777})
			}, "run.sh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			const secret = "tell-no-one"
			t.Setenv("http_proxy", "")
			t.Setenv("PLANTED", secret)
			w := newFixture(t)
			w.limits = map[string]any{"set_environment_variables": []string{"GORACE", "PLANTED"}}
			content, got := c.content(t), ""
			line := startSnoopingTask(t, w.outerDir, secret)
			var snoopOnce sync.Once
			w.routes[c.file] = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Length", strconv.Itoa(len(content)))
				_, _ = rw.Write(content[:1])
				_ = http.NewResponseController(rw).Flush()
				snoopOnce.Do(func() {
					deadline := time.Now().Add(10 * time.Second) // wait until the first byte is in the file
					for !hasDownloadWrittenFile(w.outerDir) && time.Now().Before(deadline) {
						time.Sleep(time.Millisecond)
					}
					got = line()
				})
				_, _ = rw.Write(content[1:])
			})
			w.mustDownload(httpArtifact(w, c.file, "GetterOptions", c.options(sha256Sum(content)), "GetterHeaders", map[string]string{"Authorization": secret}))
			if got != "1 " {
				t.Errorf("the task got %q of the one download, want nothing", got)
			}
			line()
			w.expectLocalFiles(map[string]string{c.want: "good one"})
		})
	}
}

// hasDownloadWrittenFile reports whether a download below outerDir has written data.
func hasDownloadWrittenFile(outer string) bool {
	for _, pattern := range []string{"/file", "/scratch/file"} {
		files, _ := filepath.Glob(outer + "/allocs/a1/*/.artifact-*" + pattern)
		for _, file := range files {
			if info, err := os.Stat(file); err == nil && info.Size() > 0 {
				return true
			}
		}
	}
	return false
}

// The process that talks to the server cannot change the expected checksum, and
// root owns the downloaded file before the checksums are compared.
func TestVerifyChecksum(t *testing.T) {
	good := sha256Sum([]byte("good"))
	for _, c := range []struct {
		name string
		sum  string
		make func(dir string) error
		want string
	}{
		{"the file", good, func(dir string) error { return os.WriteFile(dir+"/file", []byte("good"), 0o666) }, ""},
		{"another file", good, func(dir string) error { return os.WriteFile(dir+"/file", []byte("evil"), 0o666) }, "Checksums did not match for f"},
		{"a checksum of its own", good, func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/file", []byte("evil"), 0o666), os.WriteFile(dir+"/checksum", []byte(sha256Sum([]byte("evil"))), 0o666))
		}, "Checksums did not match for f"},
		{"the checksum of a list", "file:http://x/sums", func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/file", []byte("good"), 0o666), os.WriteFile(dir+"/checksum", []byte(good), 0o666))
		}, ""},
		{"no checksum of a list", "file:http://x/sums", func(dir string) error { return os.WriteFile(dir+"/file", nil, 0o666) }, "no such file"},
		{"no file", good, func(string) error { return nil }, "no such file"},
		{"a pipe", good, func(dir string) error { return unix.Mkfifo(dir+"/file", 0o666) }, "the download has left no file"},
		{"a link", good, func(dir string) error { return os.Symlink("/etc/hostname", dir+"/file") }, "the download has left no file"},
		{"a second name", good, func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/file", []byte("good"), 0o666), os.Link(dir+"/file", filepath.Dir(dir)+"/second"))
		}, "or one with other names"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t)
			p, err := newInstallerWithStagingDir(destination{w.dir.Dir, "local"}, "main", "k", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer p.closeAndRemoveStagingDir()
			if err := errors.Join(p.stagingRoot.Mkdir("scratch", 0o700), c.make(filepath.Join(w.dir.Dir, p.stagingDirName))); err != nil {
				t.Fatal(err)
			}
			err = p.verifyChecksumAndRemoveOthers(t.Context(), "f", c.sum)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if err != nil {
				return
			}
			entries, err := os.ReadDir(filepath.Join(w.dir.Dir, p.stagingDirName))
			if err != nil || len(entries) != 1 || entries[0].Name() != "file" {
				t.Errorf("the stage has %v, %v", entries, err)
			}
		})
	}
}

// If a download process keeps a file open, a write to its descriptor does not change the
// file in the task's directory.
func TestOpenHandleCannotWriteToDeliveredFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an agent that is not root has the same user as the download")
	}
	w := newFixture(t)
	p, err := newInstallerWithStagingDir(destination{w.dir.Dir, "local"}, "main", "k", &fileOwner{0, 0})
	if err != nil {
		t.Fatal(err)
	}
	defer p.closeAndRemoveStagingDir()
	dir := filepath.Join(w.dir.Dir, p.stagingDirName, resultFileName)
	if err := errors.Join(os.MkdirAll(dir+"/d", 0o777), os.Chmod(dir+"/d", 0o777),
		os.WriteFile(dir+"/d/run", []byte("good"), 0o755), os.Chown(dir+"/d/run", 4321, 4321), os.Chown(dir+"/d", 4321, 4321)); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(dir+"/d/run", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := p.install(); err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt([]byte("evil"), 0); err != nil {
		t.Fatal(err)
	}
	w.expectLocalFiles(map[string]string{"d/run": "good"})
	for name, want := range map[string]os.FileMode{"d/run": 0o755, "d": 0o777 | os.ModeDir} {
		info, err := os.Stat(filepath.Join(w.dir.LocalDir, name))
		if err != nil || info.Mode() != want || info.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// If another directory replaces the staging directory under its name, its
// content is not delivered to the task.
func TestReplacedStagingDirIsIgnored(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	p, err := newInstallerWithStagingDir(destination{w.dir.Dir, "local"}, "main", "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.closeAndRemoveStagingDir()
	stage := filepath.Join(w.dir.Dir, p.stagingDirName)
	if err := errors.Join(os.Mkdir(stage+"/result", 0o755), os.WriteFile(stage+"/result/run", []byte("good"), 0o755), os.Rename(stage, stage+"x"),
		os.MkdirAll(stage+"/result", 0o755), os.WriteFile(stage+"/result/run", []byte("evil"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.install(); err != nil {
		t.Fatal(err)
	}
	w.expectLocalFiles(map[string]string{"run": "good"})
}

// Without a PID namespace, the hook kills remaining processes of a download by
// their user id before it inspects the result.
func TestRemainingProcessesAreKilled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an agent that is not root has the same user as the download")
	}
	const id = 98765
	cmd := exec.Command("/bin/sh", "-c", `sleep 1000 & setsid sleep 1000 & echo; wait`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if pids, err := findPIDsOfUser(id); err != nil || len(pids) < 2 || !slices.Contains(pids, cmd.Process.Pid) {
		t.Errorf("processes %v, %v, want the shell and others", pids, err)
	}
	go func() { _ = cmd.Wait() }()
	if err := killProcessesOfUserAndWait(id); err != nil {
		t.Error(err)
	}
	if pids, err := findPIDsOfUser(id); err != nil || len(pids) > 0 {
		t.Errorf("processes %v, %v are left", pids, err)
	}
}

// A download never gets a user id that another process has, no matter which
// program has started that process.
func TestUserIDOfAnotherProcessIsSkipped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an agent that is not root has the same user as the download")
	}
	w := newFixture(t)
	w.routes["/a"] = "alpha"
	w.limits = map[string]any{"download_uids": "98760"}
	stranger := exec.Command("/bin/sleep", "1000")
	stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 98760, Gid: 98760}}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	w.expectFailure(httpArtifact(w, "/a"), "other processes have the user ids of downloads, 98760")
	if len(w.requests) > 0 {
		t.Errorf("requests %v beside the stranger", w.requests)
	}
	if err := errors.Join(stranger.Process.Signal(unix.Signal(0)), stranger.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = stranger.Wait()
	w.mustDownload(httpArtifact(w, "/a"))
	w.mustDownload(httpArtifact(w, "/a")) // the id was released
}

func TestReserveUserID(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"passwd": "a:x:70001:70002::/:/bin/sh\n# no line\n", "group": "b:x:70003:\n", "subuid": "c:70004:2\n", "subgid": "c:70006:0\nc:70007:1\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set := idrange.Set{{First: 70001, Last: 70008}}
	freeIDs := []uint32{70006, 70008}
	for range 20 {
		d := &userIDAllocator{accountFilesDir: dir}
		first, err := d.reserveID(t.Context(), set)
		if err != nil {
			t.Fatal(err)
		}
		second, err := d.reserveID(t.Context(), set)
		if err != nil {
			t.Fatal(err)
		}
		got := []uint32{first, second}
		slices.Sort(got)
		if !slices.Equal(got, freeIDs) {
			t.Fatalf("got %v, want %v", got, freeIDs)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if id, err := d.reserveID(ctx, set); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a third download got %d, %v", id, err)
		}
		cancel()
		time.AfterFunc(time.Millisecond, func() { d.releaseID(second) })
		if third, err := d.reserveID(t.Context(), set); err != nil || third != second {
			t.Fatalf("got %d, %v, want %d, which was given back", third, err, second)
		}
	}
	if id, err := (&userIDAllocator{accountFilesDir: dir}).reserveID(t.Context(), idrange.Set{{First: 70004, Last: 70005}}); err == nil || !strings.Contains(err.Error(), "download_uids") {
		t.Errorf("an id of a container: %d, %v", id, err)
	}
}

// The id for another process is none of a running process, and is not taken from a range that downloads need.
func TestFindUserID(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which starts a process of another user")
	}
	const busy, free = 72000, 72001
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: busy, Gid: busy}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the status of a killed process is an error
	})
	// An id that occurs often in the set is often the first candidate.
	uids := fmt.Sprintf("%d,%d", free, busy) + strings.Repeat(fmt.Sprintf(",%d", busy), 2) + strings.Repeat(fmt.Sprintf(",%d", free), minSharedIDs)
	for range 20 {
		if id, err := FindUnusedUserID(t.Context(), uids); err != nil || id != free {
			t.Fatalf("id %d, %v, want %d", id, err, free)
		}
	}
	if id, err := FindUnusedUserID(t.Context(), "72002-72010"); err == nil || !strings.Contains(err.Error(), "fewer than") {
		t.Errorf("of a small range: %d, %v", id, err)
	}
}
