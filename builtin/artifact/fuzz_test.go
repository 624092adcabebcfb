package artifact

import (
	"archive/tar"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// parseSource never panics, and never returns a path that leads out of the
// artifact.
func FuzzSource(f *testing.F) {
	for _, s := range []string{"https://x/y//z?checksum=md5:00", "git@github.com:o/r.git", "github.com/o/r//..", "s3::x", "file:///a//b", "git::ssh://-x/y", "hg::ssh://x//y//z?rev=1", "http://%zz"} {
		f.Add(s, "filename", "../x")
	}
	f.Fuzz(func(t *testing.T, text, option, value string) {
		s, err := parseSource(text, map[string]string{option: value})
		if err != nil {
			return
		}
		if name, err := s.fileName(); err == nil && (name != filepath.Base(name) || name == ".." || name == ".") {
			t.Errorf("%q has the name %q", text, name)
		}
		if s.subpath != "" && !filepath.IsLocal(s.subpath) {
			t.Errorf("%q has the part %q", text, s.subpath)
		}
		if _, err := url.Parse(s.url.String()); err != nil {
			t.Errorf("%q becomes %q: %v", text, s.url, err)
		}
		redactSource(text)
	})
}

// An archive never makes a file outside of its directory, or a link that leads
// there.
func FuzzUnpack(f *testing.F) {
	t := &testing.T{}
	f.Add("x.tar", makeTar(t, archiveEntry{name: "a/b", content: "c"}, archiveEntry{name: "l", kind: tar.TypeSymlink, link: "a/b"}, archiveEntry{name: "h", kind: tar.TypeLink, link: "a/b"}))
	f.Add("x.tar", makeTar(t, archiveEntry{name: "../evil"}, archiveEntry{name: "l/l", kind: tar.TypeSymlink, link: ".."}))
	f.Add("x.zip", makeZip(t, archiveEntry{name: "a/b", content: "c"}, archiveEntry{name: "l", kind: tar.TypeSymlink, link: "/etc"}))
	f.Add("x.tgz", gzipBytes(t, makeTar(t, archiveEntry{name: "a"})))
	f.Add("x.bz2", []byte("BZh9"))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		format, err := findArchiveFormat(name, "")
		if err != nil || format == nil || strings.Contains(name, "xz") || strings.Contains(name, "zst") {
			return
		}
		outer := t.TempDir()
		dir := filepath.Join(outer, "stage")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/file", content, 0o644); err != nil {
			t.Fatal(err)
		}
		stage, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer stage.Close()
		d := &downloader{stagingRoot: stage, downloadRequest: downloadRequest{Limits: Limits{MaxFiles: 100, MaxUnpackedBytes: 1 << 20}}}
		_ = d.unpack(t.Context(), format, "file", "out")
		entries, err := os.ReadDir(outer)
		if err != nil || len(entries) != 1 {
			t.Fatalf("outside there is %v, %v", entries, err)
		}
		_ = filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.Type() != fs.ModeSymlink {
				return err
			}
			if to, err := filepath.EvalSymlinks(name); err == nil && to != dir+"/out" && !strings.HasPrefix(to, dir+"/out/") {
				t.Errorf("%s leads to %s", name, to)
			}
			return nil
		})
	})
}
