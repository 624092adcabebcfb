package artifact

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// The test binary also serves as the process of a download.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "download" {
		resumeDelay = time.Millisecond
		os.Exit(DownloadProcessMain(os.Stdin, os.Stdout, os.Stderr))
	}
	if len(os.Args) == 2 && os.Args[1] == "confined" {
		ConfineHookProcess()
		os.Exit(tryConfinedCalls())
	}
	if len(os.Args) == 2 && os.Args[1] == "gitburgle" {
		o, err := readDownloadRequestAndChdir()
		if err == nil {
			err = readProcWithGitAlias(o)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if len(os.Args) == 4 && os.Args[1] == "spy" {
		os.Exit(runSnoopingTask(os.Args[2], os.Args[3]))
	}
	if len(os.Args) == 3 && os.Args[1] == "burgle" {
		if _, err := readDownloadRequestAndChdir(); err != nil {
			panic(err)
		}
		os.Exit(attackHostFromDownload(os.Args[2]))
	}
	// Downloads would take longer: a program built with -race sleeps for a second
	// before it exits by default.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	code := m.Run()
	if firstRepository.testRepository != nil {
		os.RemoveAll(firstRepository.dir)
	}
	os.Exit(code)
}

// readDownloadRequestAndChdir waits for the request before it enters the staging directory:
// earlier, the directory does not belong to the process.
func readDownloadRequestAndChdir() (downloadRequest, error) {
	var o downloadRequest
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return o, err
	}
	return o, unix.Fchdir(stagingDirFD)
}

// fakeHost records events, and resolves references.
type fakeHost struct {
	hook.Host
	referenceValues map[string]string

	mu       sync.Mutex
	events   []string
	progress chan hook.Event // receives ongoing events if it is not nil
}

func (h *fakeHost) EmitEvent(_ context.Context, _ hook.Scope, e hook.Event) error {
	if e.Ongoing && h.progress != nil {
		h.progress <- e
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e.Type+": "+e.Message)
	return nil
}

func (h *fakeHost) Interpolate(_ context.Context, _ hook.Scope, text string) (string, error) {
	for name, value := range h.referenceValues {
		text = strings.ReplaceAll(text, "${"+name+"}", value)
	}
	return text, nil
}

// fixture has one task, with its directories and a web server.
type fixture struct {
	t        *testing.T
	outerDir string // directory around the task's directory, which downloads must not change
	dir      hook.TaskDir
	host     *fakeHost
	hook     *Hook
	url      string
	routes   map[string]any // path -> []byte, string, or http.HandlerFunc
	taskUser string
	limits   map[string]any

	mu       sync.Mutex
	requests []string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	outer := t.TempDir()
	// Downloads run as another user, who must be able to reach the directory.
	for dir := outer; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	alloc := filepath.Join(outer, "allocs", "a1")
	w := &fixture{
		t: t, outerDir: outer, routes: map[string]any{}, host: &fakeHost{referenceValues: map[string]string{}},
		dir: hook.TaskDir{
			AllocDir: alloc, Dir: alloc + "/main", SharedAllocDir: alloc + "/alloc", LocalDir: alloc + "/main/local",
			SecretsDir: alloc + "/main/secrets", PrivateDir: alloc + "/main/private",
		},
	}
	for _, dir := range []string{w.dir.LocalDir, w.dir.SecretsDir, w.dir.PrivateDir, w.dir.SharedAllocDir, alloc + "/other/local"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.hook = &Hook{DownloadProcessArgs: []string{"download"}}
	w.hook.SetHost(w.host, hook.Node{})
	server := httptest.NewServer(http.HandlerFunc(w.serveHTTP))
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

func (f *fixture) serveHTTP(rw http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requests = append(f.requests, r.Method+" "+r.URL.RequestURI())
	f.mu.Unlock()
	switch route := f.routes[r.URL.Path].(type) {
	case string:
		_, _ = rw.Write([]byte(route))
	case []byte:
		_, _ = rw.Write(route)
	case http.HandlerFunc:
		route(rw, r)
	default:
		http.NotFound(rw, r)
	}
}

// prestart calls Prestart with artifacts in the API's form.
func (f *fixture) prestart(state map[string]string, artifacts ...map[string]any) (hook.TaskPrestartResponse, error) {
	f.t.Helper()
	limits := map[string]any{ // with /proc, from which the race detector reads its settings
		"set_environment_variables": []string{"GORACE"}, "filesystem_isolation_extra_paths": []string{"d:r:/proc"},
	}
	maps.Copy(limits, f.limits)
	at, err := json.Marshal(map[string]any{"artifacts": artifacts, "limits": limits})
	if err != nil {
		f.t.Fatal(err)
	}
	return f.hook.Prestart(f.t.Context(), hook.TaskPrestartRequest{
		RequestMeta: hook.RequestMeta{Token: "c", AttachmentJSON: at}, Alloc: hook.Alloc{ID: "a1"},
		Task: hook.Task{Name: "main", User: f.taskUser}, Dir: f.dir, PreviousState: state,
	})
}

// mustDownload downloads one artifact, which must succeed.
func (f *fixture) mustDownload(artifact map[string]any) {
	f.t.Helper()
	if _, err := f.prestart(nil, artifact); err != nil {
		f.t.Fatal(err)
	}
}

// expectFailure downloads one artifact. The download must fail with an error that
// contains words, and must leave no files.
func (f *fixture) expectFailure(artifact map[string]any, words string) {
	f.t.Helper()
	before := f.listFiles()
	_, err := f.prestart(nil, artifact)
	if err == nil {
		f.t.Fatalf("it was downloaded, want %q; there is %v", words, f.listFiles())
	}
	if !strings.HasPrefix(err.Error(), "failed to download artifact \"") || !strings.Contains(err.Error(), words) {
		f.t.Errorf("got  %v\nwant failed to download artifact …%s…", err, words)
	}
	if reflect.TypeOf(err) != reflect.TypeOf(sdk.Recoverable(err)) {
		f.t.Errorf("%v is not recoverable", err)
	}
	if after := f.listFiles(); !slices.Equal(before, after) {
		f.t.Errorf("left behind: before %v, after %v", before, after)
	}
}

// listFiles lists all files, directories with a slash.
func (f *fixture) listFiles() []string {
	f.t.Helper()
	var all []string
	err := filepath.WalkDir(f.outerDir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(f.outerDir, name)
		if e.IsDir() {
			rel += "/"
		}
		all = append(all, rel)
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return all
}

// expectLocalFiles compares the files below local with want.
func (f *fixture) expectLocalFiles(want map[string]string) {
	f.t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(f.dir.LocalDir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(f.dir.LocalDir, name)
		if e.Type() == fs.ModeSymlink {
			got[rel], err = os.Readlink(name)
			got[rel] = "-> " + got[rel]
			return err
		}
		content, err := os.ReadFile(name)
		got[rel] = string(content)
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		f.t.Errorf("got  %v\nwant %v", got, want)
	}
}

func httpArtifact(w *fixture, path string, more ...any) map[string]any {
	a := map[string]any{"GetterSource": w.url + path, "GetterMode": "any", "RelativeDest": "local/"}
	for i := 0; i < len(more); i += 2 {
		a[more[i].(string)] = more[i+1]
	}
	return a
}

func optionMap(pairs ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

// archiveEntry is an entry of an archive.
type archiveEntry struct {
	name, content string
	mode          int64
	kind          byte // type of the tar entry; 0 means a regular file
	link          string
}

func makeTar(t *testing.T, entries ...archiveEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.mode == 0 {
			e.mode = 0o644
		}
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if err := w.WriteHeader(&tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Size: int64(len(e.content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func makeZip(t *testing.T, entries ...archiveEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		mode := fs.FileMode(e.mode & 0o777)
		if e.mode == 0 {
			mode = 0o644
		}
		if e.mode&0o4000 != 0 {
			mode |= fs.ModeSetuid
		}
		switch e.kind {
		case tar.TypeSymlink:
			mode, e.content = mode|fs.ModeSymlink, e.link
		case tar.TypeChar:
			mode |= fs.ModeDevice | fs.ModeCharDevice
		}
		h.SetMode(mode)
		f, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipBytes(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// pipeThroughCommand pipes content through a program.
func pipeThroughCommand(t *testing.T, content []byte, name string, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("there is no %s here", name)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdin = bytes.NewReader(content)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestFilesOverHTTP(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		artifact func(*fixture) map[string]any
		want     map[string]string
	}{
		{"a file goes into the destination under its name",
			func(w *fixture) map[string]any { return httpArtifact(w, "/a.txt") }, map[string]string{"a.txt": "alpha"}},
		{"in mode file the destination is the file",
			func(w *fixture) map[string]any {
				return httpArtifact(w, "/a.txt", "GetterMode", "file", "RelativeDest", "local/x/y")
			}, map[string]string{"x/y": "alpha"}},
		{"an option gives it another name",
			func(w *fixture) map[string]any {
				return httpArtifact(w, "/a.txt", "GetterOptions", optionMap("filename", "b"))
			}, map[string]string{"b": "alpha"}},
		{"a destination with dots stays in the task",
			func(w *fixture) map[string]any {
				return httpArtifact(w, "/a.txt", "RelativeDest", "local/x/../z")
			}, map[string]string{"z/a.txt": "alpha"}},
		{"an absolute destination is one in the task",
			func(w *fixture) map[string]any { return httpArtifact(w, "/a.txt", "RelativeDest", "/local/etc") }, map[string]string{"etc/a.txt": "alpha"}},
		{"a destination may name the directory of the task",
			func(w *fixture) map[string]any {
				return httpArtifact(w, "/a.txt", "RelativeDest", "${NOMAD_TASK_DIR}/in")
			}, map[string]string{"in/a.txt": "alpha"}},
		{"references are filled in everywhere",
			func(w *fixture) map[string]any {
				w.host.referenceValues["X"] = "a"
				return httpArtifact(w, "/${X}.txt", "RelativeDest", "local/${X}", "GetterOptions", optionMap("checksum", "md5:${sum}"))
			}, map[string]string{"a/a.txt": "alpha"}},
		{"headers are sent",
			func(w *fixture) map[string]any {
				return httpArtifact(w, "/header", "GetterHeaders", map[string]string{"X-Word": "spoken"})
			}, map[string]string{"header": "spoken"}},
		{"options that are not ours are for the server",
			func(w *fixture) map[string]any {
				return httpArtifact(w, "/query?b=2&archive=false", "GetterOptions", optionMap("a", "1"))
			}, map[string]string{"query": "a=1&b=2"}},
		{"a query is not touched without need",
			func(w *fixture) map[string]any { return httpArtifact(w, "/query?z=%7e&a=1") }, map[string]string{"query": "z=%7e&a=1"}},
		{"it follows a redirect, but headers are for the first server",
			func(w *fixture) map[string]any {
				return httpArtifact(w, "/away", "GetterHeaders", map[string]string{"X-Word": "secret"})
			}, map[string]string{"away": ""}},
		{"a checksum of each kind",
			func(w *fixture) map[string]any {
				return httpArtifact(w, "/a.txt", "GetterOptions", optionMap("checksum", fmt.Sprintf("sha256:%X", sha256.Sum256([]byte("alpha")))))
			}, map[string]string{"a.txt": "alpha"}},
		{"a checksum without its kind, in the query",
			func(w *fixture) map[string]any {
				return httpArtifact(w, fmt.Sprintf("/a.txt?checksum=%x", sha256.Sum256([]byte("alpha"))))
			}, map[string]string{"a.txt": "alpha"}},
		{"a checksum from a list",
			func(w *fixture) map[string]any { return httpArtifact(w, "/a.txt?checksum=file:"+w.url+"/SUMS") }, map[string]string{"a.txt": "alpha"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			sum := md5.Sum([]byte("alpha"))
			w.host.referenceValues["sum"] = hex.EncodeToString(sum[:])
			other := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				fmt.Fprint(rw, r.Header.Get("X-Word"))
			}))
			t.Cleanup(other.Close)
			w.routes = map[string]any{
				"/a.txt":  "alpha",
				"/header": http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Header.Get("X-Word")) }),
				"/query":  http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.URL.RawQuery) }),
				"/away":   http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, other.URL, http.StatusFound) }),
				"/SUMS":   fmt.Sprintf("%x  b.txt\n%x *a.txt\n", md5.Sum(nil), sha256.Sum256([]byte("alpha"))),
			}
			w.mustDownload(c.artifact(w))
			w.expectLocalFiles(c.want)
			if want := []string{"Downloading Artifacts: Client is downloading artifacts"}; !slices.Equal(w.host.events, want) {
				t.Errorf("events %v, want %v", w.host.events, want)
			}
			if slices.ContainsFunc(w.requests, func(r string) bool { return !strings.HasPrefix(r, "GET ") }) {
				t.Errorf("there were other requests than GET: %v", w.requests)
			}
		})
	}
}

func TestArchives(t *testing.T) {
	t.Parallel()
	content := func(t *testing.T) []byte {
		return makeTar(t,
			archiveEntry{name: "bin/", kind: tar.TypeDir, mode: 0o755}, archiveEntry{name: "bin/run", content: "run", mode: 0o755},
			archiveEntry{name: "deep/er/file", content: "file"}, archiveEntry{name: "link", kind: tar.TypeSymlink, link: "bin/run"},
			archiveEntry{name: "bin/up", kind: tar.TypeSymlink, link: "../deep"}, archiveEntry{name: "hard", kind: tar.TypeLink, link: "bin/run"})
	}
	tree := map[string]string{"bin/run": "run", "deep/er/file": "file", "link": "-> bin/run", "bin/up": "-> ../deep", "hard": "run"}
	for _, c := range []struct {
		name string
		path string
		make func(*testing.T) []byte
		more []any
		want map[string]string
	}{
		{"tar", "/x.tar", content, nil, tree},
		{"tar.gz", "/x.tar.gz", func(t *testing.T) []byte { return gzipBytes(t, content(t)) }, nil, tree},
		{"tgz", "/x.tgz", func(t *testing.T) []byte { return gzipBytes(t, content(t)) }, nil, tree},
		{"tar.bz2", "/x.tar.bz2", func(t *testing.T) []byte { return pipeThroughCommand(t, content(t), "bzip2", "-c") }, nil, tree},
		{"tar.xz", "/x.tar.xz", func(t *testing.T) []byte { return pipeThroughCommand(t, content(t), "xz", "-c") }, nil, tree},
		{"tar.zst", "/x.tar.zst", func(t *testing.T) []byte { return pipeThroughCommand(t, content(t), "zstd", "-q", "-c") }, nil, tree},
		{"zip, with a link", "/x.zip", func(t *testing.T) []byte {
			return makeZip(t, archiveEntry{name: "a/b", content: "beta", mode: 0o755}, archiveEntry{name: "a/c", kind: tar.TypeSymlink, link: "b"})
		}, nil, map[string]string{"a/b": "beta", "a/c": "-> b"}},
		{"gz is one file", "/x.txt.gz", func(t *testing.T) []byte { return gzipBytes(t, []byte("one")) }, nil, map[string]string{"x.txt": "one"}},
		{"bz2 in mode file", "/x.bz2", func(t *testing.T) []byte { return pipeThroughCommand(t, []byte("one"), "bzip2", "-c") },
			[]any{"GetterMode", "file", "RelativeDest", "local/f"}, map[string]string{"f": "one"}},
		{"an archive of one file in mode file", "/x.tgz", func(t *testing.T) []byte { return gzipBytes(t, makeTar(t, archiveEntry{name: "any", content: "one"})) },
			[]any{"GetterMode", "file", "RelativeDest", "local/f"}, map[string]string{"f": "one"}},
		{"mode dir", "/x.tar", content, []any{"GetterMode", "dir", "RelativeDest", "local/in"},
			map[string]string{"in/bin/run": "run", "in/deep/er/file": "file", "in/link": "-> bin/run", "in/bin/up": "-> ../deep", "in/hard": "run"}},
		{"a part of an archive", "/x.tar//deep", content, nil, map[string]string{"er/file": "file"}},
		{"a part by a pattern", "/x.tar//d*/er", content, nil, map[string]string{"file": "file"}},
		{"an archive that is not to be unpacked", "/x.gz", func(*testing.T) []byte { return []byte("packed") },
			[]any{"GetterOptions", optionMap("archive", "false")}, map[string]string{"x.gz": "packed"}},
		{"an archive that does not look like one", "/x", content, []any{"GetterOptions", optionMap("archive", "tar")}, tree},
		{"of two entries with one name the later counts", "/x.tar", func(t *testing.T) []byte {
			return makeTar(t, archiveEntry{name: "a", kind: tar.TypeSymlink, link: "b"}, archiveEntry{name: "a", content: "2"})
		}, nil, map[string]string{"a": "2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			path, _, _ := strings.Cut(c.path, "//")
			w.routes[path] = c.make(t)
			w.mustDownload(httpArtifact(w, c.path, c.more...))
			w.expectLocalFiles(c.want)
			if info, err := os.Stat(filepath.Join(w.dir.LocalDir, "bin/run")); err == nil && info.Mode() != 0o755 {
				t.Errorf("mode %v, want that of the archive", info.Mode())
			}
		})
	}
}

// Archives with forbidden entries are rejected with a specific error, and leave
// no files.
func TestHostileArchives(t *testing.T) {
	t.Parallel()
	file := archiveEntry{name: "fine", content: "fine"}
	for _, c := range []struct {
		name  string
		path  string
		make  func(*testing.T) []byte
		words string
	}{
		{"absolute path in a tar", "/x.tar", func(t *testing.T) []byte { return makeTar(t, file, archiveEntry{name: "/tmp/evil"}) }, `entry "/tmp/evil" has an absolute path`},
		{"absolute path in a zip", "/x.zip", func(t *testing.T) []byte { return makeZip(t, file, archiveEntry{name: "/tmp/evil"}) }, `entry "/tmp/evil" has an absolute path`},
		{"dots in a tar", "/x.tar", func(t *testing.T) []byte { return makeTar(t, file, archiveEntry{name: "../../evil"}) }, `entry "../../evil" leads out of the artifact with ".."`},
		{"dots in a zip", "/x.zip", func(t *testing.T) []byte { return makeZip(t, file, archiveEntry{name: "a/../../evil"}) }, `leads out of the artifact with ".."`},
		{"link to an absolute path", "/x.tar", func(t *testing.T) []byte {
			return makeTar(t, file, archiveEntry{name: "l", kind: tar.TypeSymlink, link: "/etc/passwd"})
		}, `symbolic link "l" leads to the absolute path "/etc/passwd"`},
		{"link out of a zip", "/x.zip", func(t *testing.T) []byte {
			return makeZip(t, file, archiveEntry{name: "a/l", kind: tar.TypeSymlink, link: "../../x"})
		}, `symbolic link "a/l" leads out of the artifact`},
		{"link that climbs through another", "/x.tar", func(t *testing.T) []byte {
			return makeTar(t, archiveEntry{name: "d/here", kind: tar.TypeSymlink, link: "."}, archiveEntry{name: "d/l", kind: tar.TypeSymlink, link: "here/here/../.."})
		}, `leads up through other names`},
		{"file below a link", "/x.tar", func(t *testing.T) []byte {
			return makeTar(t, archiveEntry{name: "d", kind: tar.TypeSymlink, link: "."}, archiveEntry{name: "d/evil"})
		}, `entry "d/evil" lies below the symbolic link "d"`},
		{"hard link to the outside", "/x.tar", func(t *testing.T) []byte {
			return makeTar(t, file, archiveEntry{name: "h", kind: tar.TypeLink, link: "/etc/passwd"})
		}, `hard link "h" leads out of the artifact`},
		{"hard link to nothing", "/x.tar", func(t *testing.T) []byte {
			return makeTar(t, file, archiveEntry{name: "h", kind: tar.TypeLink, link: "none"})
		}, `hard link "h" leads to "none", which is no file of the artifact`},
		{"device", "/x.tar", func(t *testing.T) []byte { return makeTar(t, file, archiveEntry{name: "dev", kind: tar.TypeBlock}) }, `entry "dev" is a device`},
		{"device in a zip", "/x.zip", func(t *testing.T) []byte { return makeZip(t, file, archiveEntry{name: "dev", kind: tar.TypeChar}) }, `entry "dev" is a device`},
		{"named pipe", "/x.tar", func(t *testing.T) []byte { return makeTar(t, file, archiveEntry{name: "p", kind: tar.TypeFifo}) }, `entry "p" is a named pipe`},
		{"long name", "/x.tar", func(t *testing.T) []byte { return makeTar(t, archiveEntry{name: strings.Repeat("n", 300)}) }, "file name too long"},
		{"name that is longer than a path", "/x.tar", func(t *testing.T) []byte { return makeTar(t, archiveEntry{name: strings.Repeat("n", 5000)}) }, "is longer than 4096 bytes"},
		{"directories in directories", "/x.tar", func(t *testing.T) []byte { return makeTar(t, archiveEntry{name: strings.Repeat("d/", 300) + "x"}) }, "lies more than 256 directories deep"},
		{"directories that no entry names", "/x.zip", func(t *testing.T) []byte { return makeZip(t, archiveEntry{name: strings.Repeat("d/", 30) + "x"}) }, "it holds more than 20 directories: see decompression_limit_file_count"},
		{"nothing", "/x.tgz", func(*testing.T) []byte { return nil }, "unpack x.tgz: it is empty"},
		{"file with the name of the artifact", "/x.tar", func(t *testing.T) []byte { return makeTar(t, archiveEntry{name: "."}) }, `has the name "."`},
		{"too many files", "/x.tar", func(t *testing.T) []byte {
			return makeTar(t, slices.Repeat([]archiveEntry{file}, 21)...)
		}, "it holds more than 20 files: see decompression_limit_file_count"},
		{"too many bytes", "/x.tgz", func(t *testing.T) []byte {
			return gzipBytes(t, makeTar(t, archiveEntry{name: "big", content: string(makeZeroBytes(2 << 20))}))
		}, "it unpacks to more than 1000 kB: see decompression_limit_size"},
		{"too many bytes in one gz", "/x.gz", func(t *testing.T) []byte { return gzipBytes(t, makeZeroBytes(2<<20)) }, "see decompression_limit_size"},
		{"too many bytes after the archive", "/x.tgz", func(t *testing.T) []byte { return gzipBytes(t, append(makeTar(t, file), makeZeroBytes(2<<20)...)) }, "see decompression_limit_size"},
		{"too large a download", "/x.bin", func(*testing.T) []byte { return makeZeroBytes(600_000) }, "the download is larger than 500 kB: see http_max_size"},
		{"no archive", "/x.zip", func(*testing.T) []byte { return []byte("hello") }, "unpack x.zip: zip: not a valid zip file"},
		{"half an archive", "/x.tgz", func(t *testing.T) []byte {
			return gzipBytes(t, makeTar(t, archiveEntry{name: "a", content: string(makeZeroBytes(9000))})[:5000])
		}, "unexpected EOF"},
		{"half an xz", "/x.tar.xz", func(t *testing.T) []byte {
			b := pipeThroughCommand(t, makeTar(t, archiveEntry{name: "a", content: string(makeZeroBytes(9000))}), "xz", "-c")
			return b[:len(b)-20]
		}, "xz"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.limits = map[string]any{"decompression_limit_file_count": 20, "decompression_limit_size": 1_000_000, "http_max_size": 500_000}
			w.routes[c.path] = c.make(t)
			w.expectFailure(httpArtifact(w, c.path), c.words)
		})
	}
}

func TestRefusedSources(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, source string
		more         []any
		words        string
	}{
		{"a file", "file:///etc/hostname", nil, "download not supported for scheme 'file'"},
		{"a path", "/etc/hostname", nil, "download not supported for scheme 'file'"},
		{"a relative path", "./secret", nil, "download not supported for scheme 'file'"},
		{"a repository of this machine", "git::file:///etc", nil, "download not supported for scheme 'file' by git: there are https, http, ssh, git"},
		{"a bucket by another protocol", "s3::ftp://s3.amazonaws.com/b/k", nil, "download not supported for scheme 'ftp' by s3: there are http, https"},
		{"a bucket of Google", "gcs::https://www.googleapis.com/storage/v1/b/o", nil, "download not supported for scheme 'gcs': take the object's https URL"},
		{"a repository of this machine for Mercurial", "hg::file:///etc", nil, "download not supported for scheme 'file' by hg: there are https, http, ssh"},
		{"a path for Mercurial", "hg::/etc", nil, "download not supported for scheme 'file' by hg"},
		{"a host without a scheme", "example.com/x.tgz", nil, "download not supported for scheme 'file': begin the source with https://"},
		{"another scheme", "gopher://x/y", nil, "download not supported for scheme 'gopher': there are http, https, s3, git and hg"},
		{"no URL", "http://[::1", nil, "the source is no URL"},
		{"a host that is a flag", "git::ssh://-oProxyCommand=x/y", nil, "begins with a dash"},
		{"a ref that is a flag", "git::http://127.0.0.1:1/r?ref=--upload-pack=x", nil, `the ref "--upload-pack=x" is no name`},
		{"a part above the source", "git::http://127.0.0.1:1/r//../../etc", nil, "leads out of it"},
		{"not there", "HOST/none", nil, "getter subprocess failed: exit status 1: failed to download artifact: bad response code: 404"},
		{"nobody there", "http://127.0.0.1:1/x", nil, "connection refused"},
		{"a wrong checksum", "HOST/a", []any{"GetterOptions", optionMap("checksum", "md5:"+strings.Repeat("0", 32))}, "Checksums did not match for a: expected md5 000"},
		{"no such checksum", "HOST/a", []any{"GetterOptions", optionMap("checksum", "foo:00")}, "unsupported checksum type: foo"},
		{"no name", "HOST/", nil, "the source names no file"},
		{"one file as a directory", "HOST/a", []any{"GetterMode", "dir"}, "a is one file, and mode is dir"},
		{"many files as one", "HOST/two.tar", []any{"GetterMode", "file"}, "expected a single file"},
		{"an unknown archive", "HOST/a", []any{"GetterOptions", optionMap("archive", "rar")}, `the archive option "rar"`},
		{"a part that is several", "HOST/two.tar//*", nil, `"*" of the source is 2 things in it, of which one is wanted`},
		{"a part that is none", "HOST/two.tar//x*", nil, `there is no "x*" in it`},
		{"a reference that is unknown", "http://${meta.mirror}/x", nil, "nothing is known by the name ${meta.mirror}"},
		{"a password that is no part of a URL", "http://joe:se/kret@x/y", nil, "what is special in a name or a password is written as in %2F"},
		{"a destination outside", "HOST/a", []any{"RelativeDest", "../../../up"}, "escapes the directory of the task"},
		{"the directory of another task", "HOST/a", []any{"RelativeDest", "../other/local"}, "escapes the directory of the task"},
		{"a destination that a reference leads outside", "HOST/a", []any{"RelativeDest", "local/${up}"}, "escapes the directory of the task"},
		{"a destination through a link", "HOST/a", []any{"RelativeDest", "local/away/x"}, "path escapes"},
		{"a file for a directory", "HOST/a", []any{"GetterMode", "file", "RelativeDest", "local"}, `"local" is a directory already`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.host.referenceValues["up"] = "../../../other/local"
			w.routes = map[string]any{"/a": "alpha", "/two.tar": makeTar(t, archiveEntry{name: "1"}, archiveEntry{name: "2"})}
			if err := os.Symlink(w.outerDir, filepath.Join(w.dir.LocalDir, "away")); err != nil {
				t.Fatal(err)
			}
			source := strings.Replace(c.source, "HOST", w.url, 1)
			w.expectFailure(httpArtifact(w, "", append([]any{"GetterSource", source}, c.more...)...), c.words)
		})
	}
}

func TestSpecialBitsAreRemoved(t *testing.T) {
	t.Parallel()
	for name, archive := range map[string][]byte{
		"/x.tar": makeTar(t, archiveEntry{name: "bin/su", content: "su", mode: 0o4755}),
		"/x.zip": makeZip(t, archiveEntry{name: "bin/su", content: "su", mode: 0o4755}),
	} {
		w := newFixture(t)
		w.routes[name] = archive
		w.mustDownload(httpArtifact(w, name))
		info, err := os.Stat(filepath.Join(w.dir.LocalDir, "bin/su"))
		if err != nil || info.Mode() != 0o755 {
			t.Errorf("%s: mode %v, want 0755 without the bit: %v", name, info.Mode(), err)
		}
		if want := `Downloading Artifacts: removed the setuid bit of "bin/su"`; !slices.Contains(w.host.events, want) {
			t.Errorf("%s: events %v, want %s", name, w.host.events, want)
		}
	}
	w := newFixture(t)
	var manyEntries []archiveEntry
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		manyEntries = append(manyEntries, archiveEntry{name: name + "/", kind: tar.TypeDir, mode: 0o2755}, archiveEntry{name: name + "/f", mode: 0o1644})
	}
	w.routes["/many.tar"] = makeTar(t, manyEntries...)
	w.mustDownload(httpArtifact(w, "/many.tar"))
	info, err := os.Stat(filepath.Join(w.dir.LocalDir, "b"))
	if err != nil || info.Mode() != fs.ModeDir|0o755 {
		t.Errorf("mode %v, want 0755 without the bit: %v", info.Mode(), err)
	}
	want := []string{
		"Downloading Artifacts: Client is downloading artifacts",
		`Downloading Artifacts: removed the setgid bit of "a", the sticky bit of "a/f", the setgid bit of "b" and 7 more`,
	}
	if !slices.Equal(w.host.events, want) {
		t.Errorf("events %q, want %q", w.host.events, want)
	}
}

// The next Prestart downloads only the artifacts that have failed before
// (RS-083).
func TestOnlyFailedArtifactsAreDownloadedAgain(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.routes = map[string]any{"/a": "alpha", "/b": "beta"}
	all := []map[string]any{httpArtifact(w, "/a"), httpArtifact(w, "/late"), httpArtifact(w, "/b", "RelativeDest", "local/sub"), httpArtifact(w, "/a")}
	answer, err := w.prestart(nil, all...)
	if err == nil || len(answer.State) != 2 || len(w.requests) != 3 {
		t.Fatalf("state %v and error %v, want two that are there, and an error", answer.State, err)
	}
	w.mu.Lock()
	w.requests = nil
	w.mu.Unlock()
	w.routes["/late"] = "late"
	answer, err = w.prestart(answer.State, all...)
	if err != nil || !answer.Done {
		t.Fatalf("done %v, error %v", answer.Done, err)
	}
	if want := []string{"GET /late"}; !slices.Equal(w.requests, want) {
		t.Errorf("requests %v, want %v", w.requests, want)
	}
	w.expectLocalFiles(map[string]string{"a": "alpha", "late": "late", "sub/b": "beta"})
}

// A new installer removes the staging directories that an earlier agent has
// left for the same artifact, and no others.
func TestNewInstallerRemovesOldStagingDirs(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	to := destination{w.dir.Dir, "local"}
	left, err := newInstallerWithStagingDir(to, strings.Repeat("x", 212), "k", nil) // task name of the maximum length
	if err != nil {
		t.Fatal(err)
	}
	other, err := newInstallerWithStagingDir(to, "main1", "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	next, err := newInstallerWithStagingDir(to, strings.Repeat("x", 212), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	left.closeAndRemoveStagingDir() // the earlier agent is still closing its installer
	for p, want := range map[*installer]bool{left: false, other: true, next: true} {
		if got := pathExists(filepath.Join(w.dir.Dir, p.stagingDirName)); got != want {
			t.Errorf("%s is there: %v, want %v", p.stagingDirName, got, want)
		}
	}
	other.closeAndRemoveStagingDir()
	next.closeAndRemoveStagingDir()
}

// Secrets are downloaded again after a reboot, because their directory is in
// memory.
func TestSecretsAreDownloadedAgainWhenTheyAreGone(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.routes["/key"] = "key"
	a := httpArtifact(w, "/key", "RelativeDest", "${NOMAD_SECRETS_DIR}/k")
	first, err := w.prestart(nil, a)
	if err != nil || first.Done {
		t.Fatalf("done %v, error %v; want to be asked again", first.Done, err)
	}
	if _, err := w.prestart(first.State, a); err != nil || len(w.requests) != 1 {
		t.Errorf("requests %v, error %v; want one while the file is there", w.requests, err)
	}
	if err := os.RemoveAll(filepath.Join(w.dir.SecretsDir, "k")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.prestart(first.State, a); err != nil || len(w.requests) != 2 {
		t.Errorf("requests %v, error %v; want another when it has gone", w.requests, err)
	}
}

func TestDestinationOnAnotherFileSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	w := newFixture(t)
	if err := unix.Mount("tmpfs", w.dir.SecretsDir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(w.dir.SecretsDir, unix.MNT_DETACH) })
	w.routes["/x.tar"] = makeTar(t, archiveEntry{name: "d/run", content: "run", mode: 0o755}, archiveEntry{name: "d/l", kind: tar.TypeSymlink, link: "run"})
	w.mustDownload(httpArtifact(w, "/x.tar", "RelativeDest", "secrets"))
	w.mustDownload(httpArtifact(w, "/x.tar", "RelativeDest", "secrets")) // over the existing files
	info, err := os.Stat(filepath.Join(w.dir.SecretsDir, "d/l"))
	if err != nil || info.Mode() != 0o755 || info.Size() != 3 {
		t.Errorf("got %v, %v", info, err)
	}
}

func TestFileOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	t.Parallel()
	for _, c := range []struct {
		user  string
		chown bool
		want  [2]uint32
	}{
		{"", false, [2]uint32{0, 0}},
		{"nobody", false, [2]uint32{0, 0}},
		{"", true, [2]uint32{0, 0}},
		{"4321", true, [2]uint32{4321, 4321}},
		{"4321:1234", true, [2]uint32{4321, 1234}},
		{"daemon", true, [2]uint32{1, 1}},
	} {
		w := newFixture(t)
		w.taskUser = c.user
		w.routes["/x.tar"] = makeTar(t, archiveEntry{name: "d/run", content: "run"}, archiveEntry{name: "l", kind: tar.TypeSymlink, link: "d"})
		w.mustDownload(httpArtifact(w, "/x.tar", "RelativeDest", "local/new", "Chown", c.chown))
		for _, name := range []string{"new", "new/d", "new/d/run", "new/l"} {
			info, err := os.Lstat(filepath.Join(w.dir.LocalDir, name))
			if err != nil {
				t.Fatal(err)
			}
			if sys := info.Sys().(*syscall.Stat_t); [2]uint32{sys.Uid, sys.Gid} != c.want {
				t.Errorf("user %q, chown %v: %s belongs to %d:%d, want %v", c.user, c.chown, name, sys.Uid, sys.Gid, c.want)
			}
		}
	}
	w := newFixture(t)
	w.taskUser = "nosuchuser"
	w.routes["/a"] = "alpha"
	w.expectFailure(httpArtifact(w, "/a", "Chown", true), "chown: unknown user nosuchuser")
}

func TestLocalFileSources(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	shelf := filepath.Join(w.outerDir, "shelf")
	if err := os.MkdirAll(shelf, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shelf, "x.tgz"), gzipBytes(t, makeTar(t, archiveEntry{name: "in", content: "shelf"})), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(shelf, "away")); err != nil {
		t.Fatal(err)
	}
	w.limits = map[string]any{"filesystem_isolation_extra_paths": []string{"d:r:" + shelf}}
	w.mustDownload(map[string]any{"GetterSource": "file://" + shelf + "/x.tgz", "GetterMode": "any", "RelativeDest": "local/"})
	w.expectLocalFiles(map[string]string{"in": "shelf"})
	for source, words := range map[string]string{
		"file:///etc/hostname":                       "download not supported for scheme 'file'",
		shelf + "/../allocs":                         "download not supported for scheme 'file'",
		shelf + "/away":                              "path escapes",
		shelf + "/.":                                 "the source names no file",
		"file://" + shelf + "x/y":                    "download not supported for scheme 'file'",
		w.outerDir + "/shelf/x.tgz/../../allocs/a/b": "download not supported for scheme 'file'",
	} {
		w.expectFailure(map[string]any{"GetterSource": source, "GetterMode": "any", "RelativeDest": "local/"}, words)
	}
}

// A listed file can be a source although its directory is not listed.
func TestListedFileIsASource(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	shelf := filepath.Join(w.outerDir, "shelf")
	if err := os.MkdirAll(shelf, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"listed", "other"} {
		if err := os.WriteFile(filepath.Join(shelf, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("other", filepath.Join(shelf, "link")); err != nil {
		t.Fatal(err)
	}
	w.limits = map[string]any{"filesystem_isolation_extra_paths": []string{"f:r:" + shelf + "/listed", "f:r:" + shelf + "/link"}}
	w.mustDownload(map[string]any{"GetterSource": "file://" + shelf + "/listed", "GetterMode": "any", "RelativeDest": "local/"})
	w.expectLocalFiles(map[string]string{"listed": "listed"})
	for source, words := range map[string]string{
		shelf + "/other": "download not supported for scheme 'file'",
		shelf + "/link":  "is a symbolic link: use the path of its target",
	} {
		w.expectFailure(map[string]any{"GetterSource": source, "GetterMode": "any", "RelativeDest": "local/"}, words)
	}
}

func TestInsecureTLS(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(w.serveHTTP))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	w.url, w.routes["/a"] = server.URL, "alpha"
	w.expectFailure(httpArtifact(w, "/a"), "certificate signed by unknown authority")
	w.mustDownload(httpArtifact(w, "/a", "GetterInsecure", true))
	w.expectLocalFiles(map[string]string{"a": "alpha"})
}

func TestProxy(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprintf(rw, "by proxy: %s", r.URL) }))
	t.Cleanup(proxy.Close)
	t.Setenv("http_proxy", proxy.URL)
	w := newFixture(t)
	w.mustDownload(httpArtifact(w, "", "GetterSource", "http://far.invalid/f"))
	w.expectLocalFiles(map[string]string{"f": "by proxy: http://far.invalid/f"})
}

// Cancelling Prestart kills the download at once, and leaves no files.
func TestCancelKillsDownload(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	before := w.listFiles()
	ctx, kill := context.WithCancelCause(t.Context())
	killed := errors.New("killed")
	w.routes["/slow"] = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = rw.Write([]byte("begin"))
		rw.(http.Flusher).Flush()
		kill(killed)
		<-r.Context().Done() // the process was killed when its connection closes
	})
	at, err := json.Marshal(map[string]any{"artifacts": []any{httpArtifact(w, "/slow")}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.hook.Prestart(ctx, hook.TaskPrestartRequest{RequestMeta: hook.RequestMeta{AttachmentJSON: at}, Task: hook.Task{Name: "main"}, Dir: w.dir})
	if !errors.Is(err, killed) {
		t.Errorf("got %v, want the cause of the kill", err)
	}
	if after := w.listFiles(); !slices.Equal(before, after) {
		t.Errorf("left behind: before %v, after %v", before, after)
	}
}

// A download process exits when the process of the hook exits.
func TestDownloadEndsWithItsHook(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	requested := make(chan struct{})
	w.routes["/slow"] = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(requested)
		<-r.Context().Done()
	})
	stage, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer stage.Close()
	cmd := exec.Command("/proc/self/exe", "download")
	cmd.ExtraFiles = []*os.File{stage}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(stdin).Encode(downloadRequest{Source: w.url + "/slow", Mode: "any"}); err != nil {
		t.Fatal(err)
	}
	<-requested
	stdin.Close() // closed, as when the process of the hook exits
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() == 0 {
		t.Errorf("it ended with %v, want it to be killed", cmd.ProcessState)
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.limits = map[string]any{"http_read_timeout": int64(50 * time.Millisecond)}
	w.routes["/slow"] = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	w.routes["/stalled"] = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Accept-Ranges", "bytes")
		rw.Header().Set("Etag", `"v1"`)
		_, _ = io.WriteString(rw, "half")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	})
	w.expectFailure(httpArtifact(w, "/slow"), "not done after 50ms")
	w.expectFailure(httpArtifact(w, "/stalled"), "not done after 50ms")
}

// A broken download is resumed, unless the file has changed in the meantime.
func TestResume(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("0123456789", 10_000)
	for _, c := range []struct {
		name    string
		version func(request int) string
		ranges  bool
		breaks  int
		want    string // part of the error
		asked   []string
	}{
		{"the rest is asked for", func(int) string { return `"v1"` }, true, 2, "", []string{"", "bytes=30000-", "bytes=60000-"}},
		{"it has changed", func(n int) string { return fmt.Sprintf(`"v%d"`, n) }, true, 1, "unexpected EOF", []string{"", "bytes=30000-"}},
		{"nobody knows whether it has changed", func(int) string { return `W/"v"` }, true, 1, "unexpected EOF", []string{""}},
		{"the server knows no parts", func(int) string { return `"v1"` }, false, 1, "unexpected EOF", []string{""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			var requestedRanges []string
			w.routes["/big"] = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				requestedRanges = append(requestedRanges, r.Header.Get("Range"))
				rw.Header().Set("Etag", c.version(len(requestedRanges)))
				from := 0
				if c.ranges {
					rw.Header().Set("Accept-Ranges", "bytes")
				}
				if r.Header.Get("If-Range") == c.version(len(requestedRanges)) {
					fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
					rw.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(text)-1, len(text)))
				}
				rw.Header().Set("Content-Length", fmt.Sprint(len(text)-from))
				if from > 0 {
					rw.WriteHeader(http.StatusPartialContent)
				}
				rest := text[from:]
				if len(requestedRanges) <= c.breaks {
					rest = rest[:30_000]
				}
				_, _ = io.WriteString(rw, rest) // the body is shorter than Content-Length, so the server closes the connection
			})
			sum := sha256.Sum256([]byte(text))
			artifact := httpArtifact(w, "/big", "GetterOptions", optionMap("checksum", "sha256:"+hex.EncodeToString(sum[:])))
			if c.want == "" {
				w.mustDownload(artifact)
				w.expectLocalFiles(map[string]string{"big": text})
			} else {
				w.expectFailure(artifact, c.want)
			}
			if !slices.Equal(requestedRanges, c.asked) {
				t.Errorf("asked for %q, want %q", requestedRanges, c.asked)
			}
		})
	}
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	to := func(where string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, where, http.StatusFound) }
	}
	w.routes = map[string]any{
		"/file": to("file:///etc/hostname"), "/git": to("git://127.0.0.1/x"), "/round": to("/round"),
		"/other": http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("X-Terraform-Get", "file:///etc/hostname")
		}),
	}
	w.expectFailure(httpArtifact(w, "/file"), `unsupported protocol scheme "file"`)
	w.expectFailure(httpArtifact(w, "/git"), `unsupported protocol scheme "git"`)
	w.expectFailure(httpArtifact(w, "/round"), "it redirects more than 10 times")
	w.mustDownload(httpArtifact(w, "/other")) // X-Terraform-Get has no effect
	w.expectLocalFiles(map[string]string{"other": ""})
}

// Symbolic links at the destination are not followed out of the task's
// directory.
func TestExistingLinksAreNotFollowed(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	secret := filepath.Join(w.outerDir, "secret")
	if err := errors.Join(
		os.WriteFile(secret, []byte("secret"), 0o666),
		os.Mkdir(filepath.Join(w.dir.LocalDir, "real"), 0o755),
		os.Symlink("real", filepath.Join(w.dir.LocalDir, "inside")),
		os.Symlink(w.outerDir, filepath.Join(w.dir.LocalDir, "outside")),
		os.Symlink(secret, filepath.Join(w.dir.LocalDir, "a")),
		os.Symlink(w.outerDir, filepath.Join(w.dir.LocalDir, "d")),
	); err != nil {
		t.Fatal(err)
	}
	w.routes = map[string]any{"/a": "alpha", "/x.tar": makeTar(t, archiveEntry{name: "a", content: "packed"}, archiveEntry{name: "d/secret", content: "evil"})}
	w.expectFailure(httpArtifact(w, "/a", "RelativeDest", "local/outside"), "path escapes")
	w.expectFailure(httpArtifact(w, "/x.tar", "RelativeDest", "local/outside"), "path escapes")
	w.expectFailure(httpArtifact(w, "/a", "RelativeDest", "local/outside/secret", "GetterMode", "file"), "path escapes")
	w.mustDownload(httpArtifact(w, "/a", "RelativeDest", "local/inside"))
	w.mustDownload(httpArtifact(w, "/a", "RelativeDest", "local"))
	w.mustDownload(httpArtifact(w, "/x.tar", "RelativeDest", "local"))
	w.expectLocalFiles(map[string]string{"real/a": "alpha", "inside": "-> real", "outside": "-> " + w.outerDir, "a": "packed", "d/secret": "evil"})
	if got, err := os.ReadFile(secret); err != nil || string(got) != "secret" {
		t.Errorf("outside: %q, %v", got, err)
	}
}

// A decompression bomb (many gzip members with the best ratio) is rejected
// before it fills the disk.
func TestDecompressionRatio(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	bomb := bytes.Repeat(gzipBytes(t, makeZeroBytes(8<<20)), unpackRatioLimitMinSize>>23+1)
	w.routes = map[string]any{"/x.gz": bomb, "/x.tgz": gzipBytes(t, makeTar(t, archiveEntry{name: "zeros", content: string(makeZeroBytes(2 << 20))}))}
	w.expectFailure(httpArtifact(w, "/x.gz"), "it unpacks to more than 1000 times its size, like a bomb: see decompression_limit_ratio")
	w.mustDownload(httpArtifact(w, "/x.tgz")) // unpacked size below unpackRatioLimitMinSize

	for _, c := range []struct {
		name          string
		packed, bytes int64
		ratio         int64
		refused       bool
	}{
		{"small ones may unpack to anything", 1, unpackRatioLimitMinSize, 1000, false},
		{"at the limit", unpackRatioLimitMinSize, 1000 * unpackRatioLimitMinSize, 1000, false},
		{"above it", unpackRatioLimitMinSize, 1001 * unpackRatioLimitMinSize, 1000, true},
		{"a limit of the operator", unpackRatioLimitMinSize, 3 * unpackRatioLimitMinSize, 2, true},
		{"no limit", 1, 1000 * unpackRatioLimitMinSize, 0, false},
		{"a repository has no size of its own", 0, 1000 * unpackRatioLimitMinSize, 1000, false},
	} {
		u := unpackQuota{archiveBytes: c.packed, limits: Limits{MaxUnpackRatio: c.ratio}}
		if err := u.addBytes(c.bytes); (err != nil) != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Concurrent downloads of one task do not affect each other.
func TestConcurrentDownloads(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	want := map[string]string{}
	var all []map[string]any
	for i := range 12 {
		name := fmt.Sprintf("f%d", i)
		w.routes["/"+name] = strings.Repeat(name, 1000)
		want["all/"+name] = strings.Repeat(name, 1000)
		all = append(all, httpArtifact(w, "/"+name, "RelativeDest", "local/all"))
	}
	if _, err := w.prestart(nil, all...); err != nil {
		t.Fatal(err)
	}
	w.expectLocalFiles(want)
}

func TestRunningTaskDownloadsNothing(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	at, _ := json.Marshal(map[string]any{"artifacts": []any{httpArtifact(w, "/none")}})
	answer, err := w.hook.Prestart(t.Context(), hook.TaskPrestartRequest{
		RequestMeta: hook.RequestMeta{AttachmentJSON: at}, Dir: w.dir, Running: true, PreviousState: map[string]string{"k": "v"},
	})
	if err != nil || answer.Done || answer.State["k"] != "v" || len(w.requests) > 0 {
		t.Errorf("got %+v, %v and requests %v, want nothing to happen", answer, err, w.requests)
	}
}

func makeZeroBytes(n int) []byte { return make([]byte, n) }

func sha256Sum(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}
