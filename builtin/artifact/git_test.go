package artifact

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// testRepository is a git repository with a work tree.
type testRepository struct {
	t       *testing.T
	dir     string
	commits []string // oldest first
}

// newRepository returns a repository with a branch, a tag and a symbolic link
// that leads out of the repository.
func newRepository(t *testing.T) *testRepository {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git here")
	}
	firstRepository.once.Do(func() {
		dir, err := os.MkdirTemp("", "artifact-test")
		if err != nil {
			t.Fatal(err)
		}
		firstRepository.testRepository = makeRepository(t, dir)
	})
	if firstRepository.testRepository == nil {
		t.Fatal("the repository was not made in an earlier test")
	}
	r := &testRepository{t: t, dir: t.TempDir(), commits: slices.Clone(firstRepository.commits)}
	if err := os.CopyFS(r.dir, os.DirFS(firstRepository.dir)); err != nil {
		t.Fatal(err)
	}
	return r
}

// firstRepository is the repository that newRepository copies, because a copy takes less time than a dozen git processes.
// TestMain removes it.
var firstRepository struct {
	once sync.Once
	*testRepository
}

func makeRepository(t *testing.T, dir string) *testRepository {
	t.Helper()
	r := &testRepository{t: t, dir: dir}
	r.git("init", "-q")
	r.writeFile("app/one", "first")
	r.commit("first")
	r.git("tag", "v1")
	r.writeFile("app/one", "second")
	r.commit("second")
	r.git("checkout", "-q", "-b", "evil")
	if err := os.Symlink("/etc/passwd", filepath.Join(r.dir, "link")); err != nil {
		t.Fatal(err)
	}
	r.commit("evil")
	r.git("checkout", "-q", "main")
	return r
}

func (r *testRepository) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", r.dir, "-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *testRepository) writeFile(name, content string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *testRepository) commit(message string) {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "-m", message)
	r.commits = append(r.commits, r.git("rev-parse", "HEAD"))
}

// serveHTTP serves the repository as /r.git from the web server of w.
func (r *testRepository) serveHTTP(w *fixture) {
	r.t.Helper()
	r.git("update-server-info")
	root := filepath.Join(r.dir, ".git")
	files := http.StripPrefix("/r.git", http.FileServer(http.Dir(root)))
	_ = filepath.WalkDir(root, func(name string, _ os.DirEntry, _ error) error {
		rel, _ := filepath.Rel(root, name)
		w.routes["/r.git/"+rel] = http.HandlerFunc(files.ServeHTTP)
		return nil
	})
}

// startGitHTTPBackend serves each repository under the path of its directory. It uses git
// http-backend, as large git hosts do.
func startGitHTTPBackend(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(newGitHTTPBackendHandler(t))
	t.Cleanup(server.Close)
	return server.URL
}

func newGitHTTPBackendHandler(t *testing.T) http.Handler {
	t.Helper()
	dir, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Skip("there is no git here")
	}
	program := filepath.Join(strings.TrimSpace(string(dir)), "git-http-backend")
	if _, err := os.Stat(program); err != nil {
		t.Skip("git serves no http here")
	}
	return &cgi.Handler{Path: program, Env: []string{"GIT_PROJECT_ROOT=/", "GIT_HTTP_EXPORT_ALL=1"}}
}

func TestGit(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts dozens of git processes")
	}
	w := newFixture(t)
	repo := newRepository(t)
	repo.serveHTTP(w)
	commits := repo.commits
	git := func(to, query string, pairs ...string) map[string]any {
		return httpArtifact(w, "", "GetterSource", "git::"+w.url+"/r.git"+query, "RelativeDest", to, "GetterOptions", optionMap(pairs...))
	}
	for _, c := range []struct {
		name     string
		artifact map[string]any
		file     string
		want     string
	}{
		{"the branch of the repository", git("local/a", ""), "local/a/app/one", "second"},
		{"a tag, by an option", git("local/b", "", "ref", "v1"), "local/b/app/one", "first"},
		{"a commit, by the query", git("local/c", "?ref="+commits[0]), "local/c/app/one", "first"},
		{"a part", git("local/d", "//app"), "local/d/one", "second"},
		{"a file", git("local/e", "//app/one", "ref", "v1"), "local/e/one", "first"},
		{"the repository is there too", git("local/f", ""), "local/f/.git/HEAD", "ref: refs/heads/main\n"},
	} {
		w.mustDownload(c.artifact)
		if got, err := os.ReadFile(filepath.Join(w.dir.Dir, c.file)); err != nil || string(got) != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	w.expectFailure(git("local/x", "", "ref", "evil"), `symbolic link "link" leads to the absolute path "/etc/passwd"`)
	w.expectFailure(git("local/x", "", "ref", "none"), "fatal: invalid reference: none")
	w.expectFailure(git("local/x", "", "checksum", "md5:00"), "checksum cannot be specified for directory download")
	w.expectFailure(httpArtifact(w, "", "GetterSource", "git::"+w.url+"/none.git"), "not found")
	w.limits = map[string]any{"decompression_limit_size": 2000}
	w.expectFailure(git("local/x", ""), "it unpacks to more than 2000 B")
	w.limits = map[string]any{"decompression_limit_size": 0}
	w.mustDownload(git("local/g", ""))
}

// Git can clone below directories that its user cannot enter, such as the directory of an
// allocation, although git resolves its directory from the root of the machine.
func TestGitBelowPrivateDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("starts dozens of git processes")
	}
	if os.Geteuid() != 0 {
		t.Skip("without root, downloads have the user of the task")
	}
	for _, unconfined := range []bool{false, true} {
		w := newFixture(t)
		host, repo, module := startGitHTTPBackend(t), newRepository(t), newRepository(t)
		repo.git("-c", "url.file:///.insteadOf="+host+"/", "submodule", "--quiet", "add", host+module.dir+"/.git", "deep/mod")
		repo.commit("a module")
		if err := errors.Join(os.Chmod(w.dir.AllocDir, 0o700), os.Chmod(w.dir.Dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		before := listMountsBelow(t, w.outerDir)
		w.limits = map[string]any{"disable_filesystem_isolation": unconfined}
		w.mustDownload(httpArtifact(w, "", "GetterSource", "git::"+host+repo.dir+"/.git"))
		for _, file := range []string{"local/app/one", "local/deep/mod/app/one"} {
			if got, err := os.ReadFile(filepath.Join(w.dir.Dir, file)); err != nil || string(got) != "second" {
				t.Errorf("%s: got %q, %v", file, got, err)
			}
		}
		if after := listMountsBelow(t, w.outerDir); !slices.Equal(after, before) {
			t.Errorf("mounts before: %q, and after: %q", before, after)
		}
	}
}

// listMountsBelow returns the mounts whose path contains dir. Concurrent tests have mounts
// in other directories.
func listMountsBelow(t *testing.T, dir string) (mounts []string) {
	t.Helper()
	all, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, dir) {
			mounts = append(mounts, line)
		}
	}
	return mounts
}

// The files of a repository are counted before the checkout: in this repository,
// eight objects result in a million files.
func TestGitBomb(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes and clones a large repository")
	}
	w := newFixture(t)
	repo := newRepository(t)
	entry := "100644 blob " + repo.git("rev-parse", "HEAD:app/one")
	for range 6 {
		list := ""
		for i := range 10 {
			list += fmt.Sprintf("%s\tf%d\n", entry, i)
		}
		repo.writeFile(".git/list", list)
		entry = "040000 tree " + repo.git("-c", `alias.make=!git mktree <.git/list`, "make")
	}
	_, tree, _ := strings.Cut(entry, "tree ")
	repo.git("branch", "bomb", repo.git("commit-tree", "-m", "bomb", tree))
	repo.git("branch", "half", repo.git("commit-tree", "-m", "half", repo.git("rev-parse", tree+":f0/f0/f0/f0")))
	repo.serveHTTP(w)
	git := func(ref string) map[string]any {
		return httpArtifact(w, "", "GetterSource", "git::"+w.url+"/r.git", "GetterOptions", optionMap("ref", ref))
	}
	w.limits = map[string]any{"decompression_limit_file_count": 2}
	w.mustDownload(git("half"))
	w.expectFailure(git("bomb"), "it holds more than 128 files: see decompression_limit_file_count")
}

// The server of this test supports shallow clones and submodules, as git hosting services
// do.
func TestGitShallowClonesAndSubmodules(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts dozens of git processes")
	}
	w := newFixture(t)
	host := startGitHTTPBackend(t)
	repo, module, hostile := newRepository(t), newRepository(t), newRepository(t)
	module.writeFile("inner", "inner")
	module.commit("inner")
	hostile.git("submodule", "--quiet", "add", "file://"+module.dir, "mod")
	hostile.commit("a module of the machine")
	hostile.git("config", "-f", ".gitmodules", "submodule.mod.url", "ext::sh -c touch% "+w.outerDir+"/evil")
	hostile.commit("a module that is a command")
	repo.git("-c", "url.file:///.insteadOf="+host+"/", "submodule", "--quiet", "add", host+module.dir+"/.git", "deep/mod")
	repo.commit("a module")
	git := func(dir, to string, pairs ...string) map[string]any {
		return httpArtifact(w, "", "GetterSource", "git::"+host+dir+"/.git", "RelativeDest", to, "GetterOptions", optionMap(pairs...))
	}
	history := func(to string) string {
		t.Helper()
		cmd := exec.Command("git", "-c", "safe.directory=*", "-C", filepath.Join(w.dir.Dir, to), "rev-list", "--count", "HEAD")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	w.mustDownload(git(repo.dir, "local/all"))
	if got, err := os.ReadFile(filepath.Join(w.dir.Dir, "local/all/deep/mod/inner")); err != nil || string(got) != "inner" {
		t.Errorf("the module has %q, %v", got, err)
	}
	if got := history("local/all"); got != "3" {
		t.Errorf("%s commits", got)
	}
	w.mustDownload(git(module.dir, "local/shallow", "depth", "1"))
	if got := history("local/shallow"); got != "1" {
		t.Errorf("with a depth of 1 %s commits", got)
	}
	w.mustDownload(git(module.dir, "local/tag", "depth", "1", "ref", "v1"))
	if got, err := os.ReadFile(filepath.Join(w.dir.Dir, "local/tag/app/one")); err != nil || string(got) != "first" || history("local/tag") != "1" {
		t.Errorf("the tag has %q, %v", got, err)
	}
	w.expectFailure(git(module.dir, "local/x", "depth", "1", "ref", module.commits[0]), "with a depth the ref must be a branch or a tag")
	w.expectFailure(git(module.dir, "local/x", "depth", "deep"), `the depth "deep" is no number`)
	w.expectFailure(git(hostile.dir, "local/x"), "transport 'ext' not allowed")
	w.expectFailure(git(hostile.dir, "local/x", "ref", hostile.commits[3]), "transport 'file' not allowed")
}

// The password of a repository is in no argument of a process, which every user
// of the machine can read. It is in the repository's configuration, so that the
// task can fetch.
func TestGitLogin(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts dozens of git processes")
	}
	w := newFixture(t)
	repo, module := newRepository(t), newRepository(t)
	const password = "s3cret%word&;'"
	seen := make(chan string, 1000)
	to := newGitHTTPBackendHandler(t)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range lines {
			line, _ := os.ReadFile(file)
			if strings.Contains(string(line), "s3cret") {
				seen <- strings.ReplaceAll(string(line), "\x00", " ")
			}
		}
		if user, given, _ := r.BasicAuth(); user != "me" || given != password {
			rw.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		to.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	defer func() {
		close(seen)
		for line := range seen {
			t.Errorf("everybody can read: %s", line)
		}
	}()
	address := func(user *url.Userinfo, dir string) string {
		u, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		u.User, u.Path = user, dir+"/.git"
		return u.String()
	}
	repo.git("-c", "url.file:///.insteadOf="+server.URL+"/", "submodule", "--quiet", "add", address(nil, module.dir), "mod")
	repo.commit("a module")
	whole := address(url.UserPassword("me", password), repo.dir)
	w.mustDownload(httpArtifact(w, "", "GetterSource", "git::"+whole, "RelativeDest", "local/r"))
	for _, file := range []string{"app/one", "mod/app/one"} {
		if got, err := os.ReadFile(filepath.Join(w.dir.LocalDir, "r", file)); err != nil || string(got) != "second" {
			t.Errorf("%s: %q, %v", file, got, err)
		}
	}
	config, err := os.ReadFile(filepath.Join(w.dir.LocalDir, "r/.git/config"))
	if err != nil || !strings.Contains(string(config), `url = "`+whole+`"`) {
		t.Errorf("the configuration is %s, %v", config, err)
	}
	w.expectFailure(httpArtifact(w, "", "GetterSource", "git::"+address(url.UserPassword("me", "wrong"), repo.dir), "RelativeDest", "local/x"), "Authentication failed")
	w.expectFailure(httpArtifact(w, "", "GetterSource", "git::"+address(url.UserPassword("me", "a\nb"), repo.dir), "RelativeDest", "local/x"), "has a line break")
}

// startSSHServer runs an ssh server that accepts one key, and returns its address
// and the key.
func startSSHServer(t *testing.T) (address, key string) {
	t.Helper()
	const sshdPath = "/usr/sbin/sshd"
	if _, err := os.Stat(sshdPath); err != nil || os.Geteuid() != 0 {
		if os.Getenv("NOMAD_LITE_CI") != "" {
			t.Fatal("there must be an sshd where this runs")
		}
		t.Skip("there is no sshd here, or nobody who may run it")
	}
	if os.Mkdir("/run/sshd", 0o755) == nil {
		t.Cleanup(func() { _ = os.Remove("/run/sshd") })
	}
	dir := t.TempDir()
	for _, name := range []string{"host", "key"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	private, err := os.ReadFile(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var sshSessions sync.WaitGroup
	t.Cleanup(func() { listener.Close(); sshSessions.Wait() })
	sshSessions.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			socket, err := conn.(*net.TCPConn).File()
			conn.Close()
			if err != nil {
				return
			}
			cmd := exec.Command(sshdPath, "-i", "-e", "-f", "/dev/null", "-h", dir+"/host", "-o", "AuthorizedKeysFile="+dir+"/key.pub",
				"-o", "StrictModes=no", "-o", "UsePAM=no", "-o", "PermitRootLogin=yes", "-o", "PidFile=none")
			cmd.Stdin, cmd.Stdout = socket, socket
			sshSessions.Go(func() { _ = cmd.Run(); socket.Close() })
		}
	})
	return listener.Addr().String(), base64.StdEncoding.EncodeToString(private)
}

func TestGitOverSSH(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts an SSH server")
	}
	address, key := startSSHServer(t)
	w := newFixture(t)
	repo := newRepository(t)
	git := func(to string, more ...any) map[string]any {
		return httpArtifact(w, "", append([]any{"GetterSource", "git::ssh://root@" + address + repo.dir, "RelativeDest", to}, more...)...)
	}
	w.mustDownload(git("local/a", "GetterOptions", optionMap("sshkey", key, "ref", "v1"), "GetterInsecure", true))
	if got, err := os.ReadFile(filepath.Join(w.dir.Dir, "local/a/app/one")); err != nil || string(got) != "first" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, file := range w.listFiles() {
		if strings.Contains(filepath.Base(file), "key") {
			t.Errorf("the key is still there: %s", file)
		}
	}
	w.expectFailure(git("local/x", "GetterInsecure", true), "Permission denied")
	w.expectFailure(git("local/x", "GetterOptions", optionMap("sshkey", key)), "Host key verification failed")
	w.expectFailure(git("local/x", "GetterOptions", optionMap("sshkey", "no base64!")), "the option sshkey is no base64")
}

func TestParseSource(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, kind, url, sub string }{
		{"https://x/y.zip", "http", "https://x/y.zip", ""},
		{"https://x/y.zip//a/b?z=1", "http", "https://x/y.zip?z=1", "a/b"},
		{"https::http://x/y", "http", "http://x/y", ""},
		{"git@github.com:o/r.git", "git", "ssh://git@github.com/o/r.git", ""},
		{"git::git@host:o/r//sub?ref=v1", "git", "ssh://git@host/o/r", "sub"},
		{"github.com/o/r", "git", "https://github.com/o/r.git", ""},
		{"github.com/o/r//a/b", "git", "https://github.com/o/r.git", "a/b"},
		{"gitlab.com/o/r.git?depth=1", "git", "https://gitlab.com/o/r.git", ""},
		{"git::https://x/r.git", "git", "https://x/r.git", ""},
		{"hg::https://x/r//sub?rev=v1", "hg", "https://x/r", "sub"},
		{"hg::ssh://u@x//srv/r//sub", "hg", "ssh://u@x//srv/r", "sub"},
		{"hg::ssh://u@x/r", "hg", "ssh://u@x/r", ""},
		{"/etc/x", "file", "file:///etc/x", ""},
	} {
		s, err := parseSource(c.text, nil)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if s.sourceType != c.kind || s.url.String() != c.url || s.subpath != c.sub {
			t.Errorf("%s is %s %s %q, want %s %s %q", c.text, s.sourceType, s.url, s.subpath, c.kind, c.url, c.sub)
		}
	}
}

func TestSourceSecretsAreRedacted(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"https://u:p@x/y?token=1": "https://u:xxxxx@x/y?…",
		"git::ssh://git@x/y":      "git::ssh://git@x/y",
		"http://u:p@x":            "http://u:xxxxx@x",
		"git::https://token@x/y":  "git::https://xxxxx@x/y",
		"http://u:p/q@x/y":        "http://u:xxxxx@x/y",
		"http://x:80/a@b":         "http://x:80/a@b",
		"github.com/o/r":          "github.com/o/r",
	} {
		if got := redactSource(source); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
