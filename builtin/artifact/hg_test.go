package artifact

import (
	"bufio"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// hgRepository is a Mercurial repository with a work directory.
type hgRepository struct {
	t    *testing.T
	dir  string
	node string // first changeset
}

// newHgRepository returns a repository with a tag, and a branch with a symbolic
// link that leads out of the repository.
func newHgRepository(t *testing.T) *hgRepository {
	t.Helper()
	slowtest.Skip(t, "starts dozens of hg processes, half a second each")
	if _, err := exec.LookPath("hg"); err != nil {
		if os.Getenv("NOMAD_LITE_CI") != "" {
			t.Fatal("there must be an hg where this runs: install mercurial")
		}
		t.Skip("there is no hg here: install mercurial")
	}
	r := &hgRepository{t: t, dir: t.TempDir()}
	r.hg("init")
	r.commit("first", "app/one", "first")
	r.node = r.hg("log", "--rev", "tip", "--template", "{node}")
	r.hg("tag", "v1")
	r.commit("second", "app/one", "second")
	return r
}

func (r *hgRepository) hg(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("hg", append([]string{"--cwd", r.dir, "--config", "ui.username=n"}, args...)...)
	cmd.Env = append(os.Environ(), "HGRCPATH=", "HGPLAIN=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("hg %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *hgRepository) commit(message string, pairs ...string) {
	r.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		file := filepath.Join(r.dir, pairs[i])
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(pairs[i+1]), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
	r.hg("addremove", "--quiet")
	r.hg("commit", "--quiet", "--message", message)
}

// serve serves the repository over http, and returns its URL.
func (r *hgRepository) serve() string {
	r.t.Helper()
	cmd := exec.Command("hg", "--repository", r.dir, "serve", "--address", "127.0.0.1", "--port", "0")
	cmd.Env = append(os.Environ(), "HGRCPATH=", "PYTHONUNBUFFERED=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	m := regexp.MustCompile(`bound to ([0-9.]+:[0-9]+)`).FindStringSubmatch(line)
	if m == nil {
		r.t.Fatalf("hg serve prints %q, %v", line, err)
	}
	return "http://" + m[1]
}

func hgArtifact(w *fixture, source, to string, pairs ...string) map[string]any {
	return httpArtifact(w, "", "GetterSource", "hg::"+source, "RelativeDest", to, "GetterOptions", optionMap(pairs...))
}

func TestHg(t *testing.T) {
	t.Parallel()
	w, repo := newFixture(t), newHgRepository(t)
	repo.hg("branch", "--quiet", "evil")
	if err := os.Symlink("/etc/passwd", filepath.Join(repo.dir, "link")); err != nil {
		t.Fatal(err)
	}
	repo.commit("evil")
	repo.hg("update", "--quiet", "default")
	repo.hg("branch", "--quiet", "sub")
	repo.commit("a repository in the repository", ".hgsub", "mod = "+repo.dir+"\n", ".hgsubstate", repo.node+" mod\n")
	source := repo.serve()
	// hg can clone below directories that its user cannot enter, such as the directory of
	// an allocation.
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(w.dir.AllocDir, 0o700), os.Chmod(w.dir.Dir, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name     string
		artifact map[string]any
		file     string
		want     string
	}{
		{"the default branch", hgArtifact(w, source, "local/a"), "local/a/app/one", "second"},
		{"a tag, by an option", hgArtifact(w, source, "local/b", "rev", "v1"), "local/b/app/one", "first"},
		{"a changeset, by the query", hgArtifact(w, source+"/?rev="+repo.node, "local/c"), "local/c/app/one", "first"},
		{"a part", hgArtifact(w, source+"//app", "local/d"), "local/d/one", "second"},
		{"a file", hgArtifact(w, source+"//app/one", "local/e", "rev", "v1"), "local/e/one", "first"},
	} {
		w.mustDownload(c.artifact)
		if got, err := os.ReadFile(filepath.Join(w.dir.Dir, c.file)); err != nil || string(got) != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	// The task gets a repository that hg can use.
	cmd := exec.Command("hg", "--repository", filepath.Join(w.dir.Dir, "local/a"), "pull", "--quiet")
	cmd.Env = append(os.Environ(), "HGRCPATH=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("pull: %v: %s", err, out)
	}
	w.expectFailure(hgArtifact(w, source, "local/x", "rev", "evil"), `symbolic link "link" leads to the absolute path "/etc/passwd"`)
	w.expectFailure(hgArtifact(w, source, "local/x", "rev", "sub"), "subrepos not enabled")
	w.expectFailure(hgArtifact(w, source, "local/x", "rev", "none"), "unknown revision 'none'")
	w.expectFailure(hgArtifact(w, source, "local/x", "rev", "--config=hooks.update=touch x"), "is no name of a branch, a tag, a bookmark or a changeset")
	w.expectFailure(hgArtifact(w, source, "local/x", "rev", "file('x')"), "is no name of a branch")
	w.expectFailure(hgArtifact(w, source+"/#evil", "local/x"), "name the revision in the option rev")
	w.expectFailure(hgArtifact(w, "ssh://-oProxyCommand=x/y", "local/x"), "begins with a dash")
	w.expectFailure(hgArtifact(w, source, "local/x", "checksum", "md5:00"), "checksum cannot be specified for directory download")
	w.expectFailure(hgArtifact(w, "http://127.0.0.1:1/x", "local/x"), "hg: exit status")
	w.limits = map[string]any{"decompression_limit_size": 600}
	w.expectFailure(hgArtifact(w, source, "local/x"), "it unpacks to more than 600 B")
	w.limits = map[string]any{"hg_timeout": 1}
	w.expectFailure(hgArtifact(w, source, "local/x"), "see hg_timeout in the client's artifact block")
	empty := &hgRepository{t: t, dir: t.TempDir()}
	empty.hg("init")
	w.limits = nil
	w.mustDownload(hgArtifact(w, empty.serve(), "local/empty"))
}

// The files of a revision are counted before they are written.
func TestHgFileLimit(t *testing.T) {
	t.Parallel()
	w, repo := newFixture(t), newHgRepository(t)
	var pairs []string
	for _, a := range "abcdefghijklm" {
		for _, b := range "abcdefghij" {
			pairs = append(pairs, "d/"+string(a)+string(b), "")
		}
	}
	repo.commit("many", pairs...)
	w.limits = map[string]any{"decompression_limit_file_count": 2}
	source := repo.serve()
	w.mustDownload(hgArtifact(w, source, "local/a", "rev", "v1"))
	w.expectFailure(hgArtifact(w, source, "local/x"), "it holds more than 128 files: see decompression_limit_file_count")
}

// Neither a configuration of the machine, of a user, or of a repository has an
// effect on hg.
func TestHgIgnoresConfigurations(t *testing.T) {
	repo := newHgRepository(t)
	w := newFixture(t)
	evil := filepath.Join(w.outerDir, "evil")
	hostile := filepath.Join(w.outerDir, "hgrc")
	config := "[hooks]\npre-clone = touch " + evil + "\npre-update = touch " + evil + "\nupdate = touch " + evil + "\n[alias]\nfiles = !touch " + evil + "\n"
	if err := os.WriteFile(hostile, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HGRCPATH", hostile)
	t.Setenv("HGPLAIN", "")
	w.limits = map[string]any{
		"set_environment_variables": []string{"GORACE", "HGRCPATH", "HGPLAIN"}, "disable_filesystem_isolation": true,
	}
	source := repo.serve()
	w.mustDownload(hgArtifact(w, source, "local/a"))
	// The repository of the next command has a configuration with a hook.
	d := newHgDownloader(t, source)
	env, err := d.prepareHgEnv()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(repo.dir, ".hg/hgrc"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.runHg(t.Context(), env, []string{"-R", repo.dir, "update", "--rev", "v1"}, nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(evil); err == nil {
		t.Error("a hook was executed")
	}
	// Without these restrictions the hook runs, so that this test shows something.
	cmd := exec.Command("hg", "-R", repo.dir, "update", "--rev", "tip")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(evil); err != nil {
		t.Error("the hook is never executed")
	}
}

// newHgDownloader returns a downloader whose working directory is a new staging
// directory. The test must not be parallel.
func newHgDownloader(t *testing.T, source string) *downloader {
	t.Helper()
	t.Chdir(t.TempDir())
	src, err := parseSource("hg::"+source, nil)
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(".")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	if err := root.Mkdir(scratchDirName, 0o700); err != nil {
		t.Fatal(err)
	}
	return &downloader{downloadRequest: downloadRequest{Limits: Limits{DisableLandlock: true}}, parsedSource: src, stagingRoot: root, transferCounter: new(transferCounter)}
}

// The password of a repository is in no argument of a process, and in no file
// that the task gets.
func TestHgLogin(t *testing.T) {
	t.Parallel()
	w, repo := newFixture(t), newHgRepository(t)
	backend, err := url.Parse(repo.serve())
	if err != nil {
		t.Fatal(err)
	}
	const password = "s3cretOfHg%word&;'#"
	to := httputil.NewSingleHostReverseProxy(backend)
	seen := make(chan string, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range lines {
			if line, _ := os.ReadFile(file); strings.Contains(string(line), "s3cretOfHg") {
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
	address := func(password string) string {
		return strings.Replace(server.URL, "http://", "http://"+url.UserPassword("me", password).String()+"@", 1)
	}
	w.mustDownload(hgArtifact(w, address(password), "local/r"))
	if got, err := os.ReadFile(filepath.Join(w.dir.LocalDir, "r/app/one")); err != nil || string(got) != "second" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, file := range w.listFiles() {
		if content, _ := os.ReadFile(filepath.Join(w.outerDir, file)); strings.Contains(string(content), "s3cretOfHg") {
			t.Errorf("the password is in %s", file)
		}
	}
	w.expectFailure(hgArtifact(w, address("wrongS3cret"), "local/x"), "authorization failed")
	if _, err := w.prestart(nil, hgArtifact(w, address("wrongS3cret"), "local/x")); err == nil || strings.Contains(err.Error(), "wrongS3cret") {
		t.Errorf("the error is %v", err)
	}
	w.expectFailure(hgArtifact(w, address("a\nb"), "local/x"), "has a line break")
	close(seen)
	for line := range seen {
		t.Errorf("everybody can read: %s", line)
	}
}

func TestHgOverSSH(t *testing.T) {
	t.Parallel()
	repo := newHgRepository(t)
	address, key := startSSHServer(t)
	w := newFixture(t)
	hg := func(to string, insecure bool, pairs ...string) map[string]any {
		a := hgArtifact(w, "ssh://root@"+address+"/"+repo.dir, to, pairs...)
		a["GetterInsecure"] = insecure
		return a
	}
	w.mustDownload(hg("local/a", true, "sshkey", key, "rev", "v1"))
	if got, err := os.ReadFile(filepath.Join(w.dir.Dir, "local/a/app/one")); err != nil || string(got) != "first" {
		t.Errorf("got %q, %v", got, err)
	}
	w.expectFailure(hg("local/x", true), "Permission denied")
	w.expectFailure(hg("local/x", false, "sshkey", key), "Host key verification failed")
	w.expectFailure(hg("local/x", true, "sshkey", "no base64!"), "the option sshkey is no base64")
}

// The error of a machine without a program names its package.
func TestMissingRepositoryProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	d := newHgDownloader(t, "https://x/y")
	if err := d.runHg(t.Context(), nil, nil, nil); err == nil || err.Error() != "there is no hg on this machine: install mercurial" {
		t.Errorf("got %v", err)
	}
	if err := d.runGit(t.Context(), nil, nil, nil); err == nil || err.Error() != "there is no git on this machine: install git" {
		t.Errorf("got %v", err)
	}
}
