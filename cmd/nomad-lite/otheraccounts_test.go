package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

var (
	accountSchedules = flag.Int("account-schedules", 4, "random schedules of TestOtherAccountsGetNothing")
	accountSeed      = flag.Uint64("account-seed", 0, "the seed of the first schedule; random if it is 0")
)

// Users of tasks, and accounts that attack them. None has an entry in the user database
// but nobody, to whom the shared directories of all allocations belong.
const (
	firstUser, secondUser, laterUser = 4001, 4002, 4003
	stranger, nobodyUser             = 4242, 65534
)

// planted is the text of each template and artifact.
const planted = "planted-secret"

// intruder is an account that tries everything with the files of an agent whose paths it
// knows.
type intruder struct {
	uid      int
	own      string // a directory of its own, on the same file system
	paths    *atomic.Pointer[[]string]
	pids     *atomic.Pointer[[]int]
	attempts atomic.Int64

	mu        sync.Mutex
	successes []string
}

// run attacks until ctx ends, on a thread that has the uid and no other privilege.
func (i *intruder) run(ctx context.Context, seed uint64) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		done <- i.attack(ctx, rand.New(rand.NewPCG(seed, uint64(i.uid))))
	}()
	return <-done
}

func (i *intruder) attack(ctx context.Context, r *rand.Rand) error {
	// Raw, because those of package syscall change all threads.
	id := uintptr(i.uid)
	for _, c := range [][4]uintptr{{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, id, id, id}, {unix.SYS_SETRESUID, id, id, id}} {
		if _, _, errno := unix.RawSyscall(c[0], c[1], c[2], c[3]); errno != 0 {
			return fmt.Errorf("become user %d: %w", i.uid, errno)
		}
	}
	for ctx.Err() == nil {
		for _, pid := range *i.pids.Load() {
			i.try("signal", strconv.Itoa(pid), unix.Kill(pid, 0))
			for _, dir := range []string{"cwd", "root", "fd"} {
				path := fmt.Sprintf("/proc/%d/%s", pid, dir)
				i.try("open", path, open(path, unix.O_RDONLY))
			}
			for _, file := range []string{"environ", "maps"} {
				path := fmt.Sprintf("/proc/%d/%s", pid, file)
				if text, _ := os.ReadFile(path); len(text) > 0 { // that of a zombie is empty for all
					i.try("read", path, nil)
				}
			}
		}
		paths := *i.paths.Load()
		for range min(len(paths), 400) {
			if ctx.Err() != nil {
				return nil
			}
			i.once(r, paths[r.IntN(len(paths))])
		}
	}
	return nil
}

// once tries one thing with a path.
func (i *intruder) once(r *rand.Rand, path string) {
	evil := filepath.Join(path, "evil")
	mine := filepath.Join(i.own, strconv.FormatUint(r.Uint64(), 36))
	switch r.IntN(12) {
	case 0, 1:
		i.try("read", path, open(path, unix.O_RDONLY))
	case 2:
		i.try("write", path, open(path, unix.O_WRONLY))
	case 3:
		i.try("list", path, open(path, unix.O_RDONLY|unix.O_DIRECTORY))
	case 4:
		i.try("create", evil, open(evil, unix.O_WRONLY|unix.O_CREAT))
	case 5:
		i.try("mkdir", evil, unix.Mkdir(evil, 0o777))
	case 6:
		i.try("rename", path, unix.Rename(path, path+".evil"))
	case 7:
		i.try("take away", path, unix.Rename(path, mine))
	case 8:
		i.try("link", path, unix.Link(path, mine))
	case 9:
		i.try("symlink", evil, unix.Symlink("/etc/passwd", evil))
	case 10:
		i.try("chmod", path, unix.Chmod(path, 0o777))
	case 11:
		i.try("make a FIFO", evil, unix.Mkfifo(evil, 0o666))
	}
}

func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o666)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func (i *intruder) try(what, path string, err error) {
	i.attempts.Add(1)
	if err != nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	success := fmt.Sprintf("user %d could %s %s", i.uid, what, path)
	if len(i.successes) < 20 && !slices.Contains(i.successes, success) {
		i.successes = append(i.successes, success)
	}
}

func (i *intruder) succeeded() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.successes) > 0
}

// publicTemp returns a directory that every account can enter.
func publicTemp(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// watched is what intruders know: all paths below a directory, and the processes of the
// agent and of its tasks.
type watched struct {
	paths atomic.Pointer[[]string]
	pids  atomic.Pointer[[]int]
}

// follow looks until ctx ends.
func (w *watched) follow(ctx context.Context, dataDir string, agents func() []int) {
	for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		w.look(dataDir, agents)
	}
}

func (w *watched) look(dataDir string, agents func() []int) {
	var paths []string
	// What vanishes meanwhile is no error.
	_ = filepath.WalkDir(dataDir, func(path string, e fs.DirEntry, err error) error {
		paths = append(paths, path)
		return nil
	})
	mounts, _ := filepath.Glob(dataDir + "/alloc_mounts/*")
	paths = append(paths, mounts...)
	pids := agents()
	w.paths.Store(&paths)
	w.pids.Store(&pids)
}

// descendants returns the processes below this one that do not run as one of the users.
func descendants(users ...int) []int {
	parents := map[int]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		parents[pid], _ = strconv.Atoi(fields[1])
	}
	var found []int
	for pid := range parents {
		for p := pid; p > 1; p = parents[p] {
			if p == os.Getpid() && pid != p {
				var st unix.Stat_t
				if unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) == nil && !slices.Contains(users, int(st.Uid)) {
					found = append(found, pid)
				}
				break
			}
		}
	}
	return found
}

// An account of the machine that knows every path reads, lists, replaces, links and signals
// nothing of an agent that is root, while tasks start, render, download, restart and end in
// random schedules. The tasks themselves check that they have what is theirs, and nothing
// of one another.
func TestOtherAccountsGetNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an agent that is not root closes its data directory, which runtime/agent tests")
	}
	s := serve(t, false)
	self, err := s.Agent().Self()
	if err != nil {
		t.Fatal(err)
	}
	dataDir, _ := self.Config["DataDir"].(string)
	if dataDir == "" {
		t.Fatal("the agent does not say where its data directory is")
	}
	downloads := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(2 * time.Millisecond)
		fmt.Fprint(w, planted)
	}))
	defer downloads.Close()

	var known watched
	agents := func() []int { return descendants(stranger, nobodyUser) }
	known.look(dataDir, agents)
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { known.follow(ctx, dataDir, agents) })
	seed := *accountSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("the seed of the first schedule is %d", seed)
	var intruders []*intruder
	for _, uid := range []int{stranger, nobodyUser} {
		own := publicTemp(t)
		if err := os.Chown(own, uid, uid); err != nil {
			t.Fatal(err)
		}
		i := &intruder{uid: uid, own: own, paths: &known.paths, pids: &known.pids}
		intruders = append(intruders, i)
		running.Go(func() {
			if err := i.run(ctx, seed); err != nil {
				t.Error(err)
			}
		})
	}
	// Also after a schedule that has failed because an intruder has succeeded.
	defer func() {
		for _, i := range intruders {
			i.mu.Lock()
			for _, success := range i.successes {
				t.Error(success)
			}
			i.mu.Unlock()
		}
	}()
	for n := range uint64(*accountSchedules) {
		(&schedule{served: s, rand: rand.New(rand.NewPCG(seed+n, 0)), seed: seed + n, url: downloads.URL}).play()
		if t.Failed() || slices.ContainsFunc(intruders, (*intruder).succeeded) {
			t.Logf("the seed of this schedule is %d", seed+n)
			break
		}
	}
	end()
	running.Wait()
	for _, i := range intruders {
		t.Logf("user %d has tried %d things", i.uid, i.attempts.Load())
		if i.attempts.Load() < 1000 {
			t.Errorf("user %d has tried %d things only", i.uid, i.attempts.Load())
		}
	}
}

// An intruder succeeds where it can: else TestOtherAccountsGetNothing would show nothing.
func TestIntruderSucceedsWhereAllIsOpen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root becomes another user")
	}
	dir := publicTemp(t)
	if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(filepath.Join(dir, "file"), []byte(planted), 0o666), os.Chmod(filepath.Join(dir, "file"), 0o666)); err != nil {
		t.Fatal(err)
	}
	own := publicTemp(t)
	if err := os.Chown(own, stranger, stranger); err != nil {
		t.Fatal(err)
	}
	var known watched
	known.look(dir, func() []int { return nil })
	i := &intruder{uid: stranger, own: own, paths: &known.paths, pids: &known.pids}
	ctx, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer end()
	if err := i.run(ctx, 1); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"read", "list", "take away", "evil"} {
		if !slices.ContainsFunc(i.successes, func(s string) bool { return strings.Contains(s, what) }) {
			t.Errorf("of %d attempts none has succeeded with %q: %q", i.attempts.Load(), what, i.successes)
		}
	}
}

// schedule is a random sequence of what happens to jobs.
type schedule struct {
	*served
	rand *rand.Rand
	seed uint64
	url  string
}

// accountJobs are the groups of a schedule.
var accountJobs = map[string]func(*schedule) *api.TaskGroup{
	"as-root": func(s *schedule) *api.TaskGroup { return accountGroup(s.accountTask("main", "", "")) },
	"as-user": func(s *schedule) *api.TaskGroup {
		return accountGroup(s.accountTask("main", strconv.Itoa(firstUser), ""))
	},
	"as-name":     func(s *schedule) *api.TaskGroup { return accountGroup(s.accountTask("main", "daemon", "")) },
	"several":     (*schedule).severalUsers,
	"drops":       (*schedule).dropsPrivileges,
	"after-other": (*schedule).afterAnother,
}

func accountGroup(tasks ...*api.Task) *api.TaskGroup {
	g := api.NewTaskGroup("g", 1)
	g.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	for _, t := range tasks {
		g.AddTask(t)
	}
	return g
}

// ownFiles is a script that fails unless a task has what is its own.
const ownFiles = `set -e
test "$(cat $NOMAD_SECRETS_DIR/t)" = ` + planted + `
test "$(cat $NOMAD_TASK_DIR/t)" = ` + planted + `
test "$(cat $NOMAD_TASK_DIR/artifact/a)" = ` + planted + `
for d in $NOMAD_TASK_DIR $NOMAD_SECRETS_DIR $NOMAD_ALLOC_DIR/data $NOMAD_TASK_DIR/../tmp; do echo x > $d/by-$NOMAD_TASK_NAME; rm $d/by-$NOMAD_TASK_NAME; done
`

// accountTask is a task with templates and an artifact, that checks them, does what the
// script says, and runs on.
func (s *schedule) accountTask(name, user, script string) *api.Task {
	return shell(name, ownFiles+script+forever, func(t *api.Task) {
		t.User = user
		for _, to := range []string{"secrets/t", "local/t"} {
			t.Templates = append(t.Templates, &api.Template{EmbeddedTmpl: new(planted), DestPath: new(to), ChangeMode: new("noop")})
		}
		t.Artifacts = append(t.Artifacts, &api.TaskArtifact{GetterSource: new(s.url + "/a"), RelativeDest: new("local/artifact")})
		t.KillTimeout = new(time.Second)
	})
}

// severalUsers are tasks of several users, who cannot read one another's files.
func (s *schedule) severalUsers() *api.TaskGroup {
	others := func(names ...string) string {
		script := ""
		for _, name := range names {
			for _, file := range []string{"secrets/t", "local/t"} {
				script += fmt.Sprintf("if cat $NOMAD_ALLOC_DIR/../%s/%s; then exit 1; fi\n", name, file)
			}
			script += fmt.Sprintf("if ls $NOMAD_ALLOC_DIR/../%s; then exit 1; fi\n", name)
		}
		return script
	}
	return accountGroup(s.accountTask("root", "", ""),
		s.accountTask("first", strconv.Itoa(firstUser), others("root", "second")),
		s.accountTask("second", strconv.Itoa(secondUser), others("root", "first")))
}

// dropsPrivileges is a task of root that goes on as another user.
func (s *schedule) dropsPrivileges() *api.TaskGroup {
	as := fmt.Sprintf("setpriv --reuid=%d --regid=%d --clear-groups", laterUser, laterUser)
	task := s.accountTask("main", "", as+` sh -c 'set -e; cat $NOMAD_SECRETS_DIR/t; echo x > $NOMAD_TASK_DIR/cache'
if `+as+` sh -c 'echo x > $NOMAD_TASK_DIR/t'; then exit 1; fi
`)
	task.Meta = map[string]string{"lite_users": strconv.Itoa(laterUser)}
	return accountGroup(task)
}

// afterAnother is a task that starts when a task of another user has ended, and finds what
// that has left for it.
func (s *schedule) afterAnother() *api.TaskGroup {
	first := shell("first", "echo "+planted+" > $NOMAD_ALLOC_DIR/data/left", func(t *api.Task) {
		t.User = strconv.Itoa(secondUser)
		t.Lifecycle = &api.TaskLifecycle{Hook: "prestart"}
	})
	return accountGroup(first, s.accountTask("main", strconv.Itoa(firstUser), "test \"$(cat $NOMAD_ALLOC_DIR/data/left)\" = "+planted+"\n"))
}

// play registers some jobs, restarts and stops them at random, and waits for their end.
func (s *schedule) play() {
	s.t.Helper()
	names := make([]string, 0, len(accountJobs))
	for name := range accountJobs {
		names = append(names, name)
	}
	slices.Sort(names)
	s.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:2+s.rand.IntN(2)]
	allocs := map[string]*api.Allocation{}
	for _, name := range names {
		id := fmt.Sprintf("%s-%d", name, s.seed)
		allocs[id] = s.runGroup(id, api.JobTypeService, api.AllocClientStatusRunning, accountJobs[name](s))
	}
	for range 1 + s.rand.IntN(3) {
		for id, alloc := range allocs {
			switch s.rand.IntN(3) {
			case 0:
				if err := s.Allocations().RestartAllTasks(alloc, nil); err != nil && !strings.Contains(err.Error(), "not running") {
					s.t.Errorf("seed %d: restart %s: %v", s.seed, id, err)
				}
			case 1:
				time.Sleep(time.Duration(s.rand.IntN(50)) * time.Millisecond)
			}
		}
	}
	for id, alloc := range allocs {
		s.eventually(fmt.Sprintf("seed %d: %s runs again", s.seed, id), func() (string, bool) {
			now := s.alloc(alloc.ID)
			return now.ClientStatus + " " + now.ClientDescription, now.ClientStatus == api.AllocClientStatusRunning
		})
		time.Sleep(time.Duration(s.rand.IntN(20)) * time.Millisecond)
		for name, state := range s.alloc(alloc.ID).TaskStates {
			if state.Failed {
				s.t.Errorf("seed %d: task %s of %s has failed: %s", s.seed, name, id, lastEvents(state))
			}
		}
		if _, _, err := s.Jobs().Deregister(id, s.rand.IntN(2) == 0, nil); err != nil {
			s.t.Errorf("seed %d: stop %s: %v", s.seed, id, err)
		}
	}
}

func lastEvents(state *api.TaskState) string {
	var all []string
	for _, e := range state.Events {
		all = append(all, e.Type+": "+e.DisplayMessage)
	}
	return strings.Join(all, "; ")
}
