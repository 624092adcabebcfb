package allocdir

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const mb = 1 << 20

func mustWrite(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// describeTree returns a line with mode and content for each file below dir.
func describeTree(t *testing.T, dir string) (lines []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		info, err := e.Info()
		if err != nil {
			return err
		}
		line := rel + " " + info.Mode().String()
		if os.Geteuid() == 0 {
			line += fmt.Sprintf(" %d", info.Sys().(*syscall.Stat_t).Uid)
		}
		switch {
		case info.Mode().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(text) + " " + info.ModTime().UTC().Format(time.RFC3339)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return lines
}

func TestArchiveMovesDataWithModesOwnersAndLinks(t *testing.T) {
	from, to := newTestDir(t), newTestDir(t)
	data, local := filepath.Join(from.Path(), "alloc/data"), filepath.Join(from.Path(), "web/local")
	mustWrite(t, filepath.Join(data, "a"), "text", 0o640)
	mustWrite(t, filepath.Join(data, "deep/er/b"), strings.Repeat("x", 100<<10), 0o755)
	mustWrite(t, filepath.Join(local, "c"), "", 0o600)
	mustWrite(t, filepath.Join(from.Path(), "alloc/logs/l"), "log", 0o600)
	mustWrite(t, filepath.Join(from.Path(), "other/local/o"), "other", 0o600)
	if err := errors.Join(os.Symlink("deep/er/b", filepath.Join(data, "link")), os.Symlink("../../web/local/c", filepath.Join(data, "to-local")),
		unix.Mkfifo(filepath.Join(data, "fifo"), 0o600), os.Chtimes(filepath.Join(data, "a"), time.Time{}, time.Unix(1e9, 0))); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Lchown(filepath.Join(data, "a"), 1234, 1235), os.Lchown(filepath.Join(data, "link"), 1236, 1), os.Lchown(local, 1237, 1)); err != nil {
			t.Fatal(err)
		}
	}
	want := slices.Concat(describeTree(t, data), describeTree(t, local))
	want = slices.DeleteFunc(want, func(line string) bool { return strings.HasPrefix(line, "fifo") })

	var archive bytes.Buffer
	if err := from.WriteArchive(t.Context(), &archive, []string{"web", "missing"}); err != nil {
		t.Fatal(err)
	}
	if err := to.ReadArchive(&archive, []string{"web", "missing"}, 10*mb); err != nil {
		t.Fatal(err)
	}
	got := slices.Concat(describeTree(t, filepath.Join(to.Path(), "alloc/data")), describeTree(t, filepath.Join(to.Path(), "web/local")))
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, name := range []string{"alloc/logs/l", "other", archiveStagingName} {
		if _, err := os.Lstat(filepath.Join(to.Path(), name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An archive without the end, or with a file that has changed, is taken over by no allocation.
func TestArchiveOfFileThatBecomesShorter(t *testing.T) {
	from, to := newTestDir(t), newTestDir(t)
	path := filepath.Join(from.Path(), "alloc/data/a")
	mustWrite(t, path, strings.Repeat("x", mb), 0o600)
	var archive bytes.Buffer
	truncate := writerFunc(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte("xxxx")) {
			if err := os.Truncate(path, 0); err != nil {
				t.Error(err)
			}
		}
		return archive.Write(p)
	})
	const reason = "alloc/data/a has become shorter while it was read"
	if err := from.WriteArchive(t.Context(), truncate, nil); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("write: got %v", err)
	}
	if err := to.ReadArchive(&archive, nil, 10*mb); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("read: got %v", err)
	}
	if got := describeTree(t, filepath.Join(to.Path(), "alloc/data")); len(got) != 1 {
		t.Errorf("the allocation has %v", got)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestArchiveEndsWithItsContext(t *testing.T) {
	from := newTestDir(t)
	mustWrite(t, filepath.Join(from.Path(), "alloc/data/a"), strings.Repeat("x", mb), 0o600)
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if err := from.WriteArchive(ctx, io.Discard, nil); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

func TestArchiveLeavesOutMountsAndDeepDirectories(t *testing.T) {
	requireRoot(t)
	from := newTestDir(t)
	mounted := filepath.Join(from.Path(), "alloc/data/mounted")
	if err := os.Mkdir(mounted, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(t.TempDir(), mounted, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("bind mount: %v", err)
	}
	defer unix.Unmount(mounted, unix.MNT_DETACH)
	mustWrite(t, filepath.Join(mounted, "secret"), "of the host", 0o600)
	var archive bytes.Buffer
	if err := from.WriteArchive(t.Context(), &archive, nil); err != nil || strings.Contains(archive.String(), "of the host") {
		t.Errorf("the archive has the mount, or %v", err)
	}
	deep := filepath.Join(from.Path(), "alloc/data", strings.Repeat("d/", maxArchiveDepth+1))
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := from.WriteArchive(t.Context(), io.Discard, nil); err == nil || !strings.Contains(err.Error(), "nested deeper") {
		t.Errorf("got %v", err)
	}
}

func TestHostileArchivesAreRefused(t *testing.T) {
	file := func(name, text string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text)), PAXRecords: map[string]string{"comment": text}}
	}
	link := func(name, target string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
	}
	outside := t.TempDir()
	for _, c := range []struct {
		name    string
		entries []*tar.Header
		want    string // part of the error
	}{
		{"parent directory", []*tar.Header{file("../x", "x")}, `the path "../x" leads out`},
		{"parent directory inside", []*tar.Header{file("alloc/data/../../../x", "x")}, "leads out"},
		{"absolute path", []*tar.Header{file("/etc/x", "x")}, "leads out"},
		{"absolute link", []*tar.Header{link("alloc/data/l", outside)}, `the link "alloc/data/l" leads out of the directory, to "` + outside},
		{"relative link", []*tar.Header{link("alloc/data/l", "../../../x")}, "leads out"},
		{"link without a target", []*tar.Header{link("alloc/data/l", "")}, "leads out"},
		{"file behind a link", []*tar.Header{link("alloc/data/l", "../data"), file("alloc/data/l/x", "x")}, "not a directory"},
		{"file in place of a link", []*tar.Header{link("alloc/data/l", "x"), file("alloc/data/l", "x")}, "file exists"},
		{"directory in place of a link", []*tar.Header{link("alloc/data/l", "x"), {Typeflag: tar.TypeDir, Name: "alloc/data/l", Mode: 0o777}}, "not a directory"},
		{"shared directory is a link", []*tar.Header{link("alloc", "x"), link("alloc/data", "../x"), file("alloc/data/x", "x")}, "not a directory"},
		{"hard link", []*tar.Header{{Typeflag: tar.TypeLink, Name: "alloc/data/h", Linkname: "/etc/passwd"}}, "no file, directory or symbolic link"},
		{"device", []*tar.Header{{Typeflag: tar.TypeChar, Name: "alloc/data/d", Devmajor: 1, Devminor: 3}}, "no file, directory or symbolic link"},
		{"fifo", []*tar.Header{{Typeflag: tar.TypeFifo, Name: "alloc/data/f"}}, "no file, directory or symbolic link"},
		{"large file", []*tar.Header{file("alloc/data/x", strings.Repeat("x", mb))}, "larger than the ephemeral disk of the allocation, 1 MB"},
		{"many files", manyFiles(mb / archiveBlockBytes), "larger than the ephemeral disk"},
		{"failure of the sender", []*tar.Header{file("alloc/data/x", "x"), file(archiveErrorName(allocID), "disk broken")}, "the other node could not complete it: disk broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newTestDir(t)
			before := describeTree(t, d.Path())
			err := d.ReadArchive(bytes.NewReader(newArchive(t, c.entries)), []string{"web"}, mb)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			if after := describeTree(t, d.Path()); !slices.Equal(before, after) {
				t.Errorf("the directory has\n%s", strings.Join(after, "\n"))
			}
		})
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("the directory outside has %v, %v", left, err)
	}
}

func manyFiles(n int) (entries []*tar.Header) {
	for i := range n + 1 {
		entries = append(entries, &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("alloc/data/%d", i), Mode: 0o600})
	}
	return entries
}

// newArchive returns an archive with entries; the comment has their content.
func newArchive(t *testing.T, entries []*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		text := h.PAXRecords["comment"]
		h.PAXRecords = nil
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A truncated archive is an error at each length, and so is a connection that breaks between two entries.
func TestTruncatedArchiveIsRefused(t *testing.T) {
	whole := newArchive(t, []*tar.Header{{Typeflag: tar.TypeReg, Name: "alloc/data/a", Mode: 0o600, Size: 3, PAXRecords: map[string]string{"comment": "abc"}}})
	for _, n := range []int{1, 511, 513, 1024, 1536} {
		d := newTestDir(t)
		if err := d.ReadArchive(io.MultiReader(bytes.NewReader(whole[:n]), brokenReader{}), nil, mb); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes: got %v", n, err)
		}
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// Another node's program cannot become one that runs as its owner here.
func TestArchiveLosesSetuidBits(t *testing.T) {
	d := newTestDir(t)
	archive := newArchive(t, []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "alloc/data", Mode: 0o2777}, {Typeflag: tar.TypeReg, Name: "alloc/data/x", Mode: 0o6755},
	})
	if err := d.ReadArchive(bytes.NewReader(archive), nil, mb); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"alloc/data": fs.ModeDir | 0o777, "alloc/data/x": 0o755} {
		if info, err := os.Stat(filepath.Join(d.Path(), name)); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
}
