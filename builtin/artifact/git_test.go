package artifact

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repository serves one with a branch, a tag, a link and a hook, and returns its
// commits, oldest first.
func repository(t *testing.T, w *world) []string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git here")
	}
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var commits []string
	commit := func(message string) {
		git("add", "-A")
		git("commit", "-q", "-m", message)
		commits = append(commits, git("rev-parse", "HEAD"))
	}
	git("init", "-q")
	write("app/one", "first")
	commit("first")
	git("tag", "v1")
	write("app/one", "second")
	commit("second")
	git("checkout", "-q", "-b", "evil")
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	commit("evil")
	git("checkout", "-q", "main")
	git("update-server-info")
	files := http.StripPrefix("/r.git", http.FileServer(http.Dir(filepath.Join(dir, ".git"))))
	for _, root := range []string{filepath.Join(dir, ".git")} {
		_ = filepath.WalkDir(root, func(name string, _ os.DirEntry, _ error) error {
			rel, _ := filepath.Rel(root, name)
			w.routes["/r.git/"+rel] = http.HandlerFunc(files.ServeHTTP)
			return nil
		})
	}
	return commits
}

func TestGit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commits := repository(t, w)
	git := func(to, query string, pairs ...string) map[string]any {
		return http1(w, "", "GetterSource", "git::"+w.url+"/r.git"+query, "RelativeDest", to, "GetterOptions", options(pairs...))
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
		w.get(c.artifact)
		if got, err := os.ReadFile(filepath.Join(w.dir.Dir, c.file)); err != nil || string(got) != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	w.refused(git("local/x", "", "ref", "evil"), `symbolic link "link" leads to the absolute path "/etc/passwd"`)
	w.refused(git("local/x", "", "ref", "none"), "fatal: invalid reference: none")
	w.refused(git("local/x", "", "checksum", "md5:00"), "checksum cannot be specified for directory download")
	w.refused(http1(w, "", "GetterSource", "git::"+w.url+"/none.git"), "not found")
	w.limits = map[string]any{"decompression_limit_size": 2000}
	w.refused(git("local/x", ""), "it unpacks to more than 2000 B")
}

func TestSources(t *testing.T) {
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
		{"/etc/x", "file", "file:///etc/x", ""},
	} {
		s, err := parseSource(c.text, nil)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if s.kind != c.kind || s.url.String() != c.url || s.sub != c.sub {
			t.Errorf("%s is %s %s %q, want %s %s %q", c.text, s.kind, s.url, s.sub, c.kind, c.url, c.sub)
		}
	}
}

func TestSecretsOfASourceAreNotShown(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"https://u:p@x/y?token=1": "https://u:xxxxx@x/y?…",
		"git::ssh://git@x/y":      "git::ssh://git@x/y",
		"http://u:p@x":            "http://u:xxxxx@x/",
		"github.com/o/r":          "github.com/o/r",
	} {
		if got := withoutSecret(source); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
