package hostile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// These are the users of tasks, and the intruders' accounts. Only nobody, which owns the shared
// directories of all allocations, has an entry in the user database.
const (
	firstUser, secondUser, thirdUser = 4001, 4002, 4003
	intruderUser, nobodyUser         = 4242, 65534
)

// plantedSecret is the content of each template and artifact.
const plantedSecret = "planted-secret"

// intruder is an account that attacks the files, the processes and the port of an agent. It is given the
// paths, the process ids and the port.
type intruder struct {
	uid      int
	own      string // the intruder's own directory, on the same file system as the agent's files
	paths    *atomic.Pointer[[]string]
	pids     *atomic.Pointer[[]int]
	port     int
	attempts atomic.Int64

	mu             sync.Mutex
	successes      []string
	countsByAttack map[string]*attackCount // by kind of attack
}

// attackCount counts the attempts of a kind of attack, and the successful ones.
type attackCount struct{ attempts, successes int }

func (a attackCount) String() string { return fmt.Sprintf("%d of %d", a.successes, a.attempts) }

// run attacks until ctx ends, on a thread that has the intruder's uid and no privileges.
func (i *intruder) run(ctx context.Context, seed uint64) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread is never unlocked, so that it ends with the goroutine
		done <- i.attack(ctx, rand.New(rand.NewPCG(seed, uint64(i.uid))))
	}()
	return <-done
}

func (i *intruder) attack(ctx context.Context, r *rand.Rand) error {
	// The users are changed by raw system calls, which affect only this thread. The functions of
	// package syscall would change all threads.
	id := uintptr(i.uid)
	for _, c := range [][4]uintptr{{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, id, id, id}, {unix.SYS_SETRESUID, id, id, id}} {
		if _, _, errno := unix.RawSyscall(c[0], c[1], c[2], c[3]); errno != 0 {
			return fmt.Errorf("become user %d: %w", i.uid, errno)
		}
	}
	for ctx.Err() == nil {
		i.tryBinds()
		for _, pid := range *i.pids.Load() {
			i.trySignals(pid)
			for _, dir := range []string{"cwd", "root", "fd"} {
				path := fmt.Sprintf("/proc/%d/%s", pid, dir)
				i.try("open", path, tryOpen(path, unix.O_RDONLY))
			}
			for _, file := range []string{"environ", "maps"} {
				path := fmt.Sprintf("/proc/%d/%s", pid, file)
				if text, _ := os.ReadFile(path); len(text) > 0 { // every account can read these files of a zombie, which are empty
					i.try("read", path, nil)
				}
			}
		}
		paths := *i.paths.Load()
		for range min(len(paths), 400) {
			if ctx.Err() != nil {
				return nil
			}
			i.tryPathAttack(r, paths[r.IntN(len(paths))])
		}
	}
	return nil
}

// tryBinds tries to bind the port of the agent at each address that the clients of an agent at 127.0.0.1 use.
func (i *intruder) tryBinds() {
	for name, address := range map[string]unix.Sockaddr{
		"0.0.0.0": &unix.SockaddrInet4{Port: i.port}, "127.0.0.1": &unix.SockaddrInet4{Port: i.port, Addr: [4]byte{127, 0, 0, 1}},
		"::": &unix.SockaddrInet6{Port: i.port}, "::1": &unix.SockaddrInet6{Port: i.port, Addr: [16]byte(net.IPv6loopback)},
	} {
		family := unix.AF_INET6
		if _, isV4 := address.(*unix.SockaddrInet4); isV4 {
			family = unix.AF_INET
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			continue // a machine without IPv6
		}
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		if err == nil {
			err = unix.Bind(fd, address)
		}
		if !errors.Is(err, unix.EADDRNOTAVAIL) {
			i.try("bind", net.JoinHostPort(name, strconv.Itoa(i.port)), err)
		}
		unix.Close(fd)
	}
}

// trySignals tries each way to signal a process. The kernel treats all signals alike, except
// SIGCONT, which has an exception for processes of the same session.
func (i *intruder) trySignals(pid int) {
	name := strconv.Itoa(pid)
	i.try("signal", name, unix.Kill(pid, 0))
	i.try("continue", name, unix.Kill(pid, unix.SIGCONT))
	i.try("signal the thread", name, unix.Tgkill(pid, pid, 0))
	i.try("signal the group", name, unix.Kill(-pid, 0)) // most targets are leaders of their own process group
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		i.try("signal the handle", name, unix.PidfdSendSignal(fd, 0, nil, 0))
		unix.Close(fd)
	}
}

// tryPathAttack tries one random attack on a path.
func (i *intruder) tryPathAttack(r *rand.Rand, path string) {
	evil := filepath.Join(path, "evil")
	mine := filepath.Join(i.own, strconv.FormatUint(r.Uint64(), 36))
	switch r.IntN(15) {
	case 0, 1:
		i.try("read", path, tryOpen(path, unix.O_RDONLY))
	case 2:
		i.try("write", path, tryOpen(path, unix.O_WRONLY))
	case 3:
		i.try("list", path, tryOpen(path, unix.O_RDONLY|unix.O_DIRECTORY))
	case 4:
		i.try("create", evil, tryOpen(evil, unix.O_WRONLY|unix.O_CREAT))
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
	case 12:
		i.try("mount over", path, unix.Mount(i.own, path, "", unix.MS_BIND, ""))
	case 13:
		i.try("unmount", path, unix.Unmount(path, unix.MNT_DETACH))
	case 14:
		i.try("connect", path, tryConnect(path))
	}
}

func tryConnect(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}

func tryOpen(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o666)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func (i *intruder) try(what, path string, err error) {
	i.attempts.Add(1)
	i.mu.Lock()
	defer i.mu.Unlock()
	o := i.countsByAttack[what]
	if o == nil {
		o = new(attackCount)
		i.countsByAttack[what] = o
	}
	o.attempts++
	if err != nil {
		return
	}
	o.successes++
	success := fmt.Sprintf("user %d could %s %s", i.uid, what, path)
	if len(i.successes) < 20 && !slices.Contains(i.successes, success) {
		i.successes = append(i.successes, success)
	}
}

func newIntruder(t *testing.T, uid int, targets *attackTargets) *intruder {
	t.Helper()
	own := newPublicDir(t)
	if err := os.Chown(own, uid, uid); err != nil {
		t.Fatal(err)
	}
	return &intruder{uid: uid, own: own, paths: &targets.paths, pids: &targets.pids, port: targets.port, countsByAttack: map[string]*attackCount{}}
}

func (i *intruder) hasSucceeded() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.successes) > 0
}

// newPublicDir returns a directory that every account can enter.
func newPublicDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// attackTargets are the targets of the intruders: all paths below the data directory, the
// processes of the agent and of its tasks, and the port of the agent.
type attackTargets struct {
	port  int
	paths atomic.Pointer[[]string]
	pids  atomic.Pointer[[]int]
}

// refreshUntilDone refreshes the targets until ctx ends. It sleeps twice as long as a refresh
// takes.
func (a *attackTargets) refreshUntilDone(ctx context.Context, dataDir string, pids func() []int) {
	for ctx.Err() == nil {
		began := time.Now()
		a.refresh(dataDir, pids)
		time.Sleep(max(5*time.Millisecond, 2*time.Since(began)))
	}
}

func (a *attackTargets) refresh(dataDir string, processes func() []int) {
	var targetPaths []string
	// Files that vanish during the walk are not an error.
	_ = filepath.WalkDir(dataDir, func(path string, e fs.DirEntry, err error) error {
		targetPaths = append(targetPaths, path)
		return nil
	})
	mounts, _ := filepath.Glob(dataDir + "/alloc_mounts/*")
	targetPaths = append(targetPaths, mounts...)
	pids := processes()
	a.paths.Store(&targetPaths)
	a.pids.Store(&pids)
}

// An account of the machine that is given every path cannot read, list, replace, link, mount or
// signal anything of an agent that is root. Meanwhile tasks start, render templates, download,
// restart and end in random schedules, in each of which the agent is killed or stopped, and started
// again. The tasks themselves check that they have their own files, and no access to the files of
// other tasks.
//
//	make test-accounts
func TestOtherAccountsGetNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an agent that is not root closes its data directory, which runtime/agent tests")
	}
	sample := 4
	if !slowtest.Enabled() {
		sample = 2
	}
	run := endurance.Start(t, endurance.Config{Sample: sample, Unit: "schedules", Load: "2 intruders, 2 or 3 jobs"})
	s := systemtest.StartPersistentAgent(t, isolatingDrivers)
	downloads := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(2 * time.Millisecond)
		fmt.Fprint(w, plantedSecret)
	}))
	defer downloads.Close()

	address, err := url.Parse(s.PinHTTPPort())
	if err != nil {
		t.Fatal(err)
	}
	// The keeper runs, and holds the port, as long as this task does.
	s.RunJobUntilStatus("stays", "service", "running", systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript))
	var targets attackTargets
	if targets.port, err = strconv.Atoi(address.Port()); err != nil {
		t.Fatal(err)
	}
	ours := func() []int { return s.PIDsOfOtherUsers(intruderUser, nobodyUser) }
	targets.refresh(s.DataDir, ours)
	intruders := []*intruder{newIntruder(t, intruderUser, &targets), newIntruder(t, nobodyUser, &targets)}
	// The intruders are also checked if they made a schedule fail.
	defer func() {
		for _, i := range intruders {
			t.Logf("user %d has tried %d things, and succeeded with: %v", i.uid, i.attempts.Load(), i.countsByAttack)
			for _, success := range i.successes {
				t.Error(success)
			}
			if i.attempts.Load() < 1000 {
				t.Errorf("user %d has tried %d things only", i.uid, i.attempts.Load())
			}
		}
	}()
	run.Each(func(seed uint64) error {
		ctx, end := context.WithCancel(t.Context())
		var attackWG sync.WaitGroup
		defer attackWG.Wait()
		defer end()
		attackWG.Go(func() { targets.refreshUntilDone(ctx, s.DataDir, ours) })
		for _, i := range intruders {
			attackWG.Go(func() {
				if err := i.run(ctx, seed); err != nil {
					t.Error(err)
				}
			})
		}
		how := []unix.Signal{unix.SIGKILL, unix.SIGTERM}[seed%2]
		(&randomJobSchedule{PersistentAgent: s, rand: rand.New(rand.NewPCG(seed, 0)), seed: seed, url: downloads.URL, how: how}).run()
		run.Add(1)
		if slices.ContainsFunc(intruders, (*intruder).hasSucceeded) {
			return errors.New("an intruder has succeeded")
		}
		return nil
	})
}

// This test shows that the intruder detects open files and processes. Without it,
// TestOtherAccountsGetNothing would prove nothing.
func TestIntruderDetectsUnprotectedFilesAndProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root becomes another user")
	}
	dir := newPublicDir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for n := range 50 { // there are many files, because the intruder can remove each only once
		file := filepath.Join(dir, strconv.Itoa(n))
		if err := errors.Join(os.WriteFile(file, []byte(plantedSecret), 0o666), os.Chmod(file, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 50 {
		path := filepath.Join(dir, fmt.Sprintf("%d.sock", n))
		l, err := net.Listen("unix", path)
		if err == nil {
			defer l.Close()
			err = os.Chmod(path, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// The first process belongs to another user, so the intruder cannot signal it. The second
	// process belongs to the intruder.
	var pids []int
	for _, uid := range []uint32{nobodyUser, intruderUser} {
		cmd := exec.Command("sleep", "1000")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		pids = append(pids, cmd.Process.Pid)
	}
	l, err := net.Listen("tcp", "127.0.0.2:0") // a listener at another address does not hold the port of an agent
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	targets := attackTargets{port: l.Addr().(*net.TCPAddr).Port}
	targets.refresh(dir, func() []int { return pids })
	i := newIntruder(t, intruderUser, &targets)
	wanted := []string{"read", "write", "list", "rename", "take away", "link", "connect", "bind", "signal", "continue", "signal the handle"}
	isMissing := func(what string) bool { o := i.countsByAttack[what]; return o == nil || o.successes == 0 }
	for seed := uint64(1); seed <= 50 && slices.ContainsFunc(wanted, isMissing); seed++ { // a slow machine tries few of the random attacks at once
		ctx, end := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := i.run(ctx, seed)
		end()
		if err != nil {
			t.Fatal(err)
		}
	}
	made := 0 // number of created files of all kinds: only one can be created, because all attempts use the same path
	for _, what := range []string{"create", "mkdir", "symlink", "make a FIFO"} {
		if o := i.countsByAttack[what]; o != nil {
			made += o.successes
		}
	}
	if made == 0 {
		t.Errorf("the intruder has made nothing: %v", i.countsByAttack)
	}
	for _, what := range wanted {
		if isMissing(what) {
			t.Errorf("none has succeeded with %q: %v", what, i.countsByAttack)
		}
	}
	for what, o := range i.countsByAttack {
		if (strings.HasPrefix(what, "signal") || what == "continue") && o.successes*2 != o.attempts {
			t.Errorf("%s: %v have succeeded, want half of them", what, o)
		}
	}
}

// isolatingDrivers are plugins with drivers of each file system isolation.
var isolatingDrivers = map[string]string{"chroot-driver": "isolating-driver chroot", "image-driver": "isolating-driver image"}

// randomJobSchedule is a random sequence of operations on jobs, in which the agent is stopped or
// killed once.
type randomJobSchedule struct {
	*systemtest.PersistentAgent
	rand *rand.Rand
	seed uint64
	url  string
	how  unix.Signal // signal that stops or kills the agent

	stepsUntilExit int // number of steps until the agent is stopped or killed
}

// unisolatedGroupBuilders are the task groups of a schedule. None of their tasks runs as nobody by
// default, because other processes of nobody have full access to such tasks.
var unisolatedGroupBuilders = map[string]func(*randomJobSchedule) *api.TaskGroup{
	"as-root": func(s *randomJobSchedule) *api.TaskGroup { return newTaskGroup(s.newFileCheckingTask("main", "", "")) },
	"as-user": func(s *randomJobSchedule) *api.TaskGroup {
		return newTaskGroup(s.newFileCheckingTask("main", strconv.Itoa(firstUser), ""))
	},
	"as-name": func(s *randomJobSchedule) *api.TaskGroup {
		return newTaskGroup(s.newFileCheckingTask("main", "daemon", ""))
	},
	"several":     (*randomJobSchedule).newSeveralUsersGroup,
	"drops":       (*randomJobSchedule).newPrivilegeDroppingGroup,
	"after-other": (*randomJobSchedule).newSequentialUsersGroup,
}

// isolatedGroupBuilders are task groups with file system isolation. Each schedule has exactly one of them.
var isolatedGroupBuilders = map[string]func(*randomJobSchedule) *api.TaskGroup{
	"in-chroot": func(s *randomJobSchedule) *api.TaskGroup {
		return newTaskGroup(withIsolation("chroot", s.newFileCheckingTask("main", strconv.Itoa(firstUser), assertOwnRootDirScript)))
	},
	"in-image": func(s *randomJobSchedule) *api.TaskGroup {
		return newTaskGroup(withIsolation("image", s.newFileCheckingTask("main", strconv.Itoa(firstUser), assertOwnRootDirScript)))
	},
	"in-image-as-root": func(s *randomJobSchedule) *api.TaskGroup {
		return newTaskGroup(withIsolation("image", s.newFileCheckingTask("main", "", assertOwnRootDirScript)))
	},
	"each-isolation": (*randomJobSchedule).newGroupOfEachIsolation,
}

// assertOwnRootDirScript is a script that fails if the task's root directory is the host's. The task can see /etc
// and /usr of the host.
const assertOwnRootDirScript = `
test -d /secrets
if test -e /proc/self || test -e /var; then exit 1; fi
`

// withIsolation changes a shell task so that the driver in_chroot or in_image runs its script.
func withIsolation(isolation string, t *api.Task) *api.Task {
	t.Driver = "in_" + isolation
	t.Config = map[string]any{"script": t.Config["args"].([]string)[1]}
	return t
}

func newTaskGroup(tasks ...*api.Task) *api.TaskGroup {
	g := api.NewTaskGroup("g", 1)
	g.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	for _, t := range tasks {
		g.AddTask(t)
	}
	return g
}

// assertOwnFilesScript is a script that fails unless the task has its templates, its artifact, its token and its socket.
const assertOwnFilesScript = `set -e
test "$(cat $NOMAD_SECRETS_DIR/t)" = ` + plantedSecret + `
test "$(cat $NOMAD_TASK_DIR/t)" = ` + plantedSecret + `
test "$(cat $NOMAD_TASK_DIR/artifact/a)" = ` + plantedSecret + `
test "$(cat $NOMAD_SECRETS_DIR/nomad_token)" = "$NOMAD_TOKEN"
test -w $NOMAD_SECRETS_DIR/api.sock
for d in $NOMAD_TASK_DIR $NOMAD_SECRETS_DIR $NOMAD_ALLOC_DIR/data $NOMAD_TASK_DIR/../tmp; do echo x > $d/by-$NOMAD_TASK_NAME; rm $d/by-$NOMAD_TASK_NAME; done
`

// newFileCheckingTask returns a task with templates and an artifact. The task checks its files, runs the
// script, and then runs until it is stopped.
func (s *randomJobSchedule) newFileCheckingTask(name, user, script string) *api.Task {
	return systemtest.NewRawExecShellTask(name, assertOwnFilesScript+script+systemtest.SleepForeverScript, func(t *api.Task) {
		t.User = user
		t.Identity = &api.WorkloadIdentity{Env: true, File: true}
		for _, to := range []string{"secrets/t", "local/t"} {
			t.Templates = append(t.Templates, &api.Template{EmbeddedTmpl: new(plantedSecret), DestPath: new(to), ChangeMode: new("noop")})
		}
		t.Artifacts = append(t.Artifacts, &api.TaskArtifact{GetterSource: new(s.url + "/a"), RelativeDest: new("local/artifact")})
		t.KillTimeout = new(time.Second)
	})
}

// assertUnreadableScript returns a script that fails if the task can read the files of other users.
func assertUnreadableScript(others ...string) (script string) {
	for _, name := range others {
		for _, file := range []string{"secrets/t", "secrets/nomad_token", "local/t"} {
			script += fmt.Sprintf("if cat $NOMAD_ALLOC_DIR/../%s/%s; then exit 1; fi\n", name, file)
		}
	}
	return script
}

// newSeveralUsersGroup returns a group whose tasks run as different users, who cannot read one
// another's files.
func (s *randomJobSchedule) newSeveralUsersGroup() *api.TaskGroup {
	const assertUnlistableScript = "if ls $NOMAD_ALLOC_DIR/../%s; then exit 1; fi\n"
	return newTaskGroup(s.newFileCheckingTask("root", "", ""),
		s.newFileCheckingTask("first", strconv.Itoa(firstUser), assertUnreadableScript("root", "second")+fmt.Sprintf(assertUnlistableScript+assertUnlistableScript, "root", "second")),
		s.newFileCheckingTask("second", strconv.Itoa(secondUser), assertUnreadableScript("root", "first")+fmt.Sprintf(assertUnlistableScript+assertUnlistableScript, "root", "first")))
}

// newGroupOfEachIsolation returns a group with one task for each file system isolation, each of another
// user.
func (s *randomJobSchedule) newGroupOfEachIsolation() *api.TaskGroup {
	return newTaskGroup(s.newFileCheckingTask("none", strconv.Itoa(firstUser), assertUnreadableScript("chroot", "image")),
		withIsolation("chroot", s.newFileCheckingTask("chroot", strconv.Itoa(secondUser), assertOwnRootDirScript+assertUnreadableScript("none", "image"))),
		withIsolation("image", s.newFileCheckingTask("image", strconv.Itoa(thirdUser), assertOwnRootDirScript+assertUnreadableScript("none", "chroot"))))
}

// newPrivilegeDroppingGroup returns a group with a task that starts as root and continues as another
// user.
func (s *randomJobSchedule) newPrivilegeDroppingGroup() *api.TaskGroup {
	as := fmt.Sprintf("setpriv --reuid=%d --regid=%d --clear-groups", thirdUser, thirdUser)
	task := s.newFileCheckingTask("main", "", as+` sh -c 'set -e; cat $NOMAD_SECRETS_DIR/t; echo x > $NOMAD_TASK_DIR/cache'
if `+as+` sh -c 'echo x > $NOMAD_TASK_DIR/t'; then exit 1; fi
`)
	task.Meta = map[string]string{"lite_users": strconv.Itoa(thirdUser)}
	return newTaskGroup(task)
}

// newSequentialUsersGroup returns a group with two tasks of different users: the second task starts
// when the first has ended, and uses the files that the first has created.
func (s *randomJobSchedule) newSequentialUsersGroup() *api.TaskGroup {
	first := systemtest.NewRawExecShellTask("first", "echo "+plantedSecret+" > $NOMAD_ALLOC_DIR/data/left", func(t *api.Task) {
		t.User = strconv.Itoa(secondUser)
		t.Lifecycle = &api.TaskLifecycle{Hook: "prestart"}
	})
	return newTaskGroup(first, s.newFileCheckingTask("main", strconv.Itoa(firstUser), "test \"$(cat $NOMAD_ALLOC_DIR/data/left)\" = "+plantedSecret+"\n"))
}

// pickGroups returns some of the groups, in random order.
func (s *randomJobSchedule) pickGroups(count int, jobs map[string]func(*randomJobSchedule) *api.TaskGroup) []string {
	names := slices.Sorted(maps.Keys(jobs))
	s.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names[:count]
}

// maybeRestartAgent is called before each operation of a schedule. Before one of them it stops or
// kills the agent, and starts it again after a random delay.
func (s *randomJobSchedule) maybeRestartAgent() {
	s.T.Helper()
	s.stepsUntilExit--
	if s.stepsUntilExit != 0 {
		return
	}
	s.sleepRandomly(50)
	s.SignalAndWait(s.how)
	s.sleepRandomly(50)
	s.StartAndWaitReady()
}

func (s *randomJobSchedule) sleepRandomly(most int) {
	time.Sleep(time.Duration(s.rand.IntN(most)) * time.Millisecond)
}

// run registers some jobs, restarts and stops them at random, and waits until each of them has run.
func (s *randomJobSchedule) run() {
	s.T.Helper()
	groups := map[string]*api.TaskGroup{}
	var ids []string
	for _, name := range s.pickGroups(1+s.rand.IntN(2), unisolatedGroupBuilders) {
		ids = append(ids, fmt.Sprintf("%s-%d", name, s.seed))
		groups[ids[len(ids)-1]] = unisolatedGroupBuilders[name](s)
	}
	for _, name := range s.pickGroups(1, isolatedGroupBuilders) {
		ids = append(ids, fmt.Sprintf("%s-%d", name, s.seed))
		groups[ids[len(ids)-1]] = isolatedGroupBuilders[name](s)
	}
	allocs := map[string]*api.Allocation{}
	rounds := 1 + s.rand.IntN(3)
	s.stepsUntilExit = 1 + s.rand.IntN((3+rounds)*len(ids))
	for _, id := range ids {
		s.RegisterJobWithGroup(id, api.JobTypeService, groups[id])
		s.maybeRestartAgent()
	}
	for _, id := range ids {
		allocs[id] = s.WaitAllocStatus(id, api.AllocClientStatusRunning)
		s.maybeRestartAgent()
	}
	for range rounds {
		for _, id := range ids {
			switch s.rand.IntN(3) {
			case 0:
				if err := s.Allocations().RestartAllTasks(allocs[id], nil); err != nil && !strings.Contains(err.Error(), "not running") {
					s.T.Errorf("restart %s: %v", id, err)
				}
			case 1:
				s.sleepRandomly(50)
			}
			s.maybeRestartAgent()
		}
	}
	for _, id := range ids {
		s.WaitUntil(id+" runs again", func() (string, bool) {
			now := s.ReadAlloc(allocs[id].ID)
			seen := now.ClientStatus + " " + now.ClientDescription
			for name, state := range now.TaskStates {
				seen += fmt.Sprintf("\ntask %s: %s", name, systemtest.FormatEvents(state))
			}
			return seen, now.ClientStatus == api.AllocClientStatusRunning
		})
		s.sleepRandomly(20)
		for name, state := range s.ReadAlloc(allocs[id].ID).TaskStates {
			if state.Failed {
				s.T.Errorf("task %s of %s has failed: %s", name, id, systemtest.FormatEvents(state))
			}
		}
		if _, _, err := s.Jobs().Deregister(id, s.rand.IntN(2) == 0, nil); err != nil {
			s.T.Errorf("stop %s: %v", id, err)
		}
		s.maybeRestartAgent()
	}
}
