package fileaccess

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const limit = 1 << 20

// makeTree makes files and directories, in order, and returns their directory. A path with a final / is a directory, and the text
// "-> target" makes a symbolic link.
func makeTree(t *testing.T, entries ...entry) string {
	t.Helper()
	syscall.Umask(0)
	root := publicTempDir(t)
	for _, e := range entries {
		path := filepath.Join(root, e.path)
		target, isLink := strings.CutPrefix(e.text, "-> ")
		var err error
		switch {
		case isLink:
			err = os.Symlink(strings.ReplaceAll(target, "ROOT", root), path)
		case strings.HasSuffix(e.path, "/"):
			err = os.Mkdir(path, e.mode)
		default:
			err = os.WriteFile(path, []byte(e.text), e.mode)
		}
		if err == nil && e.uid != 0 {
			err = os.Lchown(path, e.uid, e.uid)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

type entry struct {
	path string
	mode os.FileMode
	text string
	uid  int
}

// publicTempDir returns a new directory each account can search.
func publicTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "fileaccess")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// readIn reads a file with the working directory cwd.
func readIn(t *testing.T, cwd string, p Policy, path string) (string, *Reader, error) {
	t.Helper()
	t.Chdir(cwd)
	r := NewReader(p)
	content, err := r.ReadFile(path, limit)
	return string(content), r, err
}

// TestLayoutsOfRepositoriesNeedNoFlag places files as in public repositories with job files, in a home directory that only its
// owner can search.
func TestLayoutsOfRepositoriesNeedNoFlag(t *testing.T) {
	root := makeTree(t,
		entry{path: "me/", mode: 0o700}, entry{path: "me/repo/", mode: 0o700}, entry{path: "me/repo/.git/", mode: 0o700},
		entry{path: "me/repo/jobs/", mode: 0o700}, entry{path: "me/repo/jobs/web.conf", mode: 0o600, text: "x"},
		entry{path: "me/repo/config/", mode: 0o700}, entry{path: "me/repo/config/app.conf", mode: 0o600, text: "x"},
		entry{path: "me/repo/LICENSE", mode: 0o600, text: "x"},
		entry{path: "me/repo/modules/", mode: 0o700}, entry{path: "me/repo/modules/web/", mode: 0o700},
		entry{path: "me/repo/modules/web/files/", mode: 0o700}, entry{path: "me/repo/modules/web/files/a.conf", mode: 0o600, text: "x"},
		entry{path: "me/plain/", mode: 0o700}, entry{path: "me/plain/conf.d/", mode: 0o700}, entry{path: "me/plain/conf.d/a", mode: 0o600, text: "x"},
		entry{path: "me/repo/jobs/link.conf", text: "-> ../config/app.conf"},
	)
	t.Setenv("HOME", filepath.Join(root, "me"))
	for _, test := range []struct{ name, cwd, jobDir, path string }{
		{"beside the job", "me/repo/jobs", ".", "web.conf"},
		{"beside the job, from the top", "me/repo", "jobs", "jobs/web.conf"},
		{"sibling folder", "me/repo/jobs", ".", "../config/app.conf"},
		{"top of the repository", "me/repo/jobs", ".", "../LICENSE"},
		{"module", "me/repo", "modules/web", "modules/web/files/a.conf"},
		{"module, seen from another", "me/repo/jobs", "../modules/web", "../modules/web/files/a.conf"},
		{"no repository", "me/plain", ".", "conf.d/a"},
		{"the job's repository from elsewhere", ".", "me/repo/jobs", "me/repo/config/app.conf"},
		{"a link within the repository", "me/repo/jobs", ".", "link.conf"},
	} {
		t.Run(test.name, func(t *testing.T) {
			content, r, err := readIn(t, filepath.Join(root, test.cwd), Policy{JobFileDir: test.jobDir}, test.path)
			if err != nil || content != "x" {
				t.Fatalf("got %q, %v", content, err)
			}
			if len(r.FilesReadOutside()) > 0 {
				t.Errorf("%q counts as outside", r.FilesReadOutside())
			}
		})
	}
}

// hostileTree has a repository, secrets beside it, and links to them.
func hostileTree(t *testing.T) string {
	return makeTree(t,
		entry{path: "secret/", mode: 0o700}, entry{path: "secret/key", mode: 0o644, text: "s"},
		entry{path: "secret/sub/", mode: 0o755}, entry{path: "secret/sub/key", mode: 0o644, text: "s"}, entry{path: "secret/sub/work/", mode: 0o755},
		entry{path: "private", mode: 0o600, text: "s"}, entry{path: "public", mode: 0o644, text: "p"},
		entry{path: "unlistable/", mode: 0o711}, entry{path: "unlistable/.hidden", mode: 0o644, text: "s"},
		entry{path: "repo/", mode: 0o755}, entry{path: "repo/.git/", mode: 0o755}, entry{path: "repo/jobs/", mode: 0o755},
		entry{path: "repo/out", text: "-> ../private"}, entry{path: "repo/outdir", text: "-> ROOT/secret"}, entry{path: "repo/chain", text: "-> outdir/../private"},
		entry{path: "repo/topublic", text: "-> ../public"}, entry{path: "repo/loop", text: "-> loop"}, entry{path: "repo/here", text: "-> ."},
		entry{path: "repo/eve", mode: 0o600, text: "s", uid: 4321}, entry{path: "repo/evedir/", mode: 0o700, uid: 4321}, entry{path: "repo/evedir/key", mode: 0o600, text: "s"},
		entry{path: "repo/ok", mode: 0o600, text: "ok"},
		entry{path: "repo/data/", mode: 0o700}, entry{path: "repo/data/token", mode: 0o600, text: "s"}, entry{path: "repo/data/state.db", mode: 0o600}, entry{path: "repo/data/lock", mode: 0o600},
		entry{path: "repo/other/", mode: 0o700}, entry{path: "repo/other/token", mode: 0o600, text: "s"},
		entry{path: "home/", mode: 0o755}, entry{path: "home/me/", mode: 0o700}, entry{path: "home/me/private", mode: 0o600, text: "s"}, entry{path: "home/me/.git/", mode: 0o700}, entry{path: "home/me/work/", mode: 0o700},
	)
}

func TestHostileTextsReadNothing(t *testing.T) {
	root := hostileTree(t)
	t.Setenv("HOME", root+"/home/me")
	refused := func(cwd, path string, p Policy) {
		t.Run(cwd+" "+path, func(t *testing.T) {
			t.Helper()
			content, r, err := readIn(t, filepath.Join(root, cwd), p, strings.ReplaceAll(path, "ROOT", root))
			var refusal *RefusedError
			if !errors.As(err, &refusal) || content != "" {
				t.Errorf("got %q, %v", content, err)
			}
			// Each account can look up names in a directory it can search.
			isPublicName := slices.Contains([]string{"../private", "ROOT/private", "out", "chain", "here/../../private", "/etc/shadow", "eve"}, path)
			if _, err := r.Exists(strings.ReplaceAll(path, "ROOT", root)); !errors.As(err, &refusal) && !isPublicName {
				t.Errorf("existence: %v", err)
			}
		})
	}
	for _, path := range []string{
		"../private", "ROOT/private", "out", "chain", "outdir/key", "outdir/sub/key", "../secret/key", "../secret/absent", "../secret/sub/key", "here/../../private",
		"/etc/shadow", "/proc/self/environ", "/proc/version", "/proc/self/root/etc/hostname", "/sys/kernel/uevent_helper", "/dev/fd/0", "data/token", "data/absent", "other/token", "here/data/token",
	} {
		refused("repo", path, Policy{ForbiddenDirs: []string{root + "/repo/other"}})
	}
	allowAll := Policy{AllowedPaths: []string{"/"}, ForbiddenDirs: []string{root + "/repo/other"}}
	for _, path := range []string{"/proc/self/environ", "/sys/kernel/uevent_helper", "data/token", "other/token", "/dev/fd/0"} {
		refused("repo", path, allowAll)
	}
	if os.Geteuid() == 0 {
		refused("repo", "eve", Policy{})
		refused("repo", "evedir/key", Policy{})
	}
	for _, cwd := range []string{"/", "home", "home/me"} { // neither a directory with home directories nor one itself
		if cwd == "/" {
			refused("../../..", "ROOT/private", Policy{JobFileDir: "/"})
			continue
		}
		refused(cwd, "ROOT/home/me/private", Policy{})
	}
	refused("home/me/work", "../private", Policy{}) // a home directory is not a repository
	refused("secret/sub/work", "../key", Policy{})  // only the way to the working directory is permitted
	refused("repo", "ROOT/public", Policy{Source: FromStdin})
	refused("repo/jobs", "../ok", Policy{Source: FromStdin})
	refused("repo", "ok", Policy{Source: FromURL})
	refused("repo", "ok", Policy{Source: FromURL, AllowedPaths: []string{"/"}})
}

func TestPermittedFilesAreNamedIfOutside(t *testing.T) {
	root := hostileTree(t)
	for _, test := range []struct {
		path    string
		policy  Policy
		outside bool
	}{
		{path: "ok"}, {path: "here/here/ok"},
		{path: root + "/public", outside: true}, {path: "topublic", outside: true}, {path: "/etc/passwd", outside: true},
		{path: root + "/private", policy: Policy{AllowedPaths: []string{"../private"}}, outside: true},
		{path: "outdir/sub/key", policy: Policy{AllowedPaths: []string{root + "/secret"}}, outside: true},
		{path: "out", policy: Policy{AllowedPaths: []string{"out"}}, outside: true},
		{path: "ok", policy: Policy{Source: FromStdin}},
		{path: "../public", policy: Policy{Source: FromStdin, AllowedPaths: []string{"../public"}}, outside: true},
	} {
		t.Run(test.path, func(t *testing.T) {
			content, r, err := readIn(t, root+"/repo", test.policy, test.path)
			if err != nil || content == "" {
				t.Fatalf("got %q, %v", content, err)
			}
			if got := len(r.FilesReadOutside()) > 0; got != test.outside {
				t.Errorf("outside: %t, want %t", got, test.outside)
			}
			if exists, err := r.Exists(test.path); !exists || err != nil {
				t.Errorf("exists: %t, %v", exists, err)
			}
		})
	}
}

func TestMissingAndSpecialFiles(t *testing.T) {
	root := hostileTree(t)
	if err := syscall.Mkfifo(root+"/repo/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"absent": "no file exists at absent", "fifo": "not a regular file", "jobs": "not a regular file", "/dev/zero": "not a regular file",
		"loop": "too many levels", "ok/x": "not a directory",
	} {
		if _, _, err := readIn(t, root+"/repo", Policy{}, path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
	if err := os.WriteFile(root+"/repo/large", make([]byte, limit+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readIn(t, root+"/repo", Policy{}, "large"); err == nil || !strings.Contains(err.Error(), "the limit is") {
		t.Errorf("got %v", err)
	}
	if exists, err := NewReader(Policy{}).Exists("absent"); exists || err != nil {
		t.Errorf("got %t, %v", exists, err)
	}
}

// TestPlantedRepository has another account's .git above the working directory.
func TestPlantedRepository(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make files of another account")
	}
	root := makeTree(t, entry{path: ".git/", mode: 0o755, uid: 4321}, entry{path: "mine", mode: 0o600, text: "s"}, entry{path: "job/", mode: 0o755})
	var refusal *RefusedError
	if content, _, err := readIn(t, root+"/job", Policy{}, "../mine"); !errors.As(err, &refusal) {
		t.Errorf("got %q, %v", content, err)
	}
}

func TestGlob(t *testing.T) {
	root := hostileTree(t)
	t.Chdir(root + "/repo")
	for _, test := range []struct {
		dir, pattern string
		want         []string
		wantErr      string
	}{
		{dir: ".", pattern: "o?", want: []string{"ok"}},
		{dir: ".", pattern: "{ok,absent}", want: []string{"ok"}},
		{dir: ".", pattern: "{o{k,x},here/ok}", want: []string{"here/ok", "ok"}},
		{dir: "jobs", pattern: "../ok", want: []string{"../ok"}},
		{dir: "absent", pattern: "*", want: []string{}},
		{dir: ".", pattern: "absent/*", want: []string{}},
		{dir: "here", pattern: "[!a-n]k", want: []string{"ok"}},
		{dir: "..", pattern: "public", want: []string{"../public"}},
		{dir: ".", pattern: "out*/*", wantErr: "may not read"},
		{dir: ".", pattern: "data/*", wantErr: "may not read"},
		{dir: "..", pattern: "unlistable/*", wantErr: "may not read"},
		{dir: "..", pattern: "secret/*", wantErr: "may not read"},
		{dir: "..", pattern: "secret/key", wantErr: "may not read"},
		{dir: "/proc", pattern: "*", wantErr: "may not read"},
		{dir: ".", pattern: "[", wantErr: "syntax error"},
		{dir: ".", pattern: "{a", wantErr: "{ without }"},
		{dir: ".", pattern: strings.Repeat("{a,b}", 40), wantErr: "alternatives"},
	} {
		t.Run(test.pattern, func(t *testing.T) {
			got, err := NewReader(Policy{}).Glob(test.dir, test.pattern)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("got %q, %v, want %s", got, err, test.wantErr)
				}
				return
			}
			want := test.want
			if test.dir == ".." {
				want = []string{"public"}
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
}

// TestGlobEnds has links that make the number of paths grow exponentially.
func TestGlobEnds(t *testing.T) {
	root := makeTree(t, entry{path: "x", mode: 0o600})
	for i := range 20 {
		for j := range 3 {
			if err := os.MkdirAll(fmt.Sprintf("%s/d%d", root, i), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(fmt.Sprintf("../d%d", i+1), fmt.Sprintf("%s/d%d/l%d", root, i, j)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Chdir(root)
	r := NewReader(Policy{})
	r.maxLookups = 10_000
	if _, err := r.Glob(".", "**/absent"); !errors.Is(err, errTooManyLookups) {
		t.Errorf("got %v", err)
	}
	if r.lookups > r.maxLookups+1_000 {
		t.Errorf("%d look-ups", r.lookups)
	}
	if _, err := r.ReadFile("x", limit); !errors.Is(err, errTooManyLookups) {
		t.Errorf("the limit does not hold for the whole text: %v", err)
	}
	if err := os.Symlink(".", "d19/self"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename("x", "d19/x"); err != nil {
		t.Fatal(err)
	}
	if got, err := NewReader(Policy{}).Glob("d19", "**"); err != nil || !slices.Equal(got, []string{"x"}) {
		t.Errorf("got %q, %v: ** must not follow a link to a directory above it", got, err)
	}
}

// TestExchangedLinks reads a file and a directory while another process exchanges them for links to a secret.
func TestExchangedLinks(t *testing.T) {
	root := makeTree(t,
		entry{path: "secret/", mode: 0o700}, entry{path: "secret/key", mode: 0o600, text: "s"},
		entry{path: "repo/", mode: 0o755}, entry{path: "repo/dir/", mode: 0o755}, entry{path: "repo/dir/key", mode: 0o600, text: "x"},
		entry{path: "repo/link", text: "-> ../secret"}, entry{path: "repo/key", mode: 0o600, text: "x"}, entry{path: "repo/keylink", text: "-> ../secret/key"},
		entry{path: "pub/", mode: 0o755}, entry{path: "pub/a", mode: 0o644, text: "x"}, entry{path: "pub/b", mode: 0o600, text: "s"},
	)
	exchange := exec.Command(os.Args[0], "-test.run=^TestHelperExchange$")
	exchange.Env = append(os.Environ(), "EXCHANGE_IN="+root+"/repo")
	if err := exchange.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { exchange.Process.Kill(); exchange.Wait() }()
	t.Chdir(root + "/repo")
	outcomes := map[string]int{}
	r := NewReader(Policy{})
	r.maxLookups = 1 << 40
	for i := 0; i < 20_000 || len(outcomes) < 2 && i < 1_000_000; i++ {
		for _, path := range []string{"key", "dir/key", "../pub/a"} {
			content, err := r.ReadFile(path, limit)
			var refusal *RefusedError
			switch {
			case string(content) == "s":
				t.Fatalf("%s: the secret was read", path)
			case errors.As(err, &refusal):
				outcomes["refused"]++
			case err == nil:
				outcomes["read"]++
			}
		}
	}
	if outcomes["refused"] == 0 || outcomes["read"] == 0 {
		t.Errorf("the race was not run: %v", outcomes)
	}
}

func TestNoDescriptorStaysOpen(t *testing.T) {
	root := hostileTree(t)
	t.Chdir(root + "/repo")
	r := NewReader(Policy{})
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := count()
	for range 10 {
		r.ReadFile("here/ok", limit)
		r.ReadFile("outdir/key", limit)
		r.Glob("..", "**")
		r.Exists("/etc/passwd/x")
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
