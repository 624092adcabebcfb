package datadirectory

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/snapshot"
)

// archiveFile is a file in a snapshot. Its content is followed by zeros up to the size.
type archiveFile struct {
	tar.Header
	content []byte
}

// zeros reads zeros without end.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// packArchive returns a snapshot with the files, with valid checksums unless they have checksums already, and with trailing zeros.
func packArchive(t *testing.T, files []archiveFile, trailingBytes int64) []byte {
	t.Helper()
	var packed bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewWriter(zipped)
	var sums strings.Builder
	hasSums := false
	write := func(f archiveFile) {
		if f.Typeflag == 0 || f.Typeflag == tar.TypeReg {
			f.Size = max(f.Size, int64(len(f.content)))
		}
		if err := archive.WriteHeader(&f.Header); err != nil {
			t.Fatal(err)
		}
		sum := sha256.New()
		content := io.MultiReader(bytes.NewReader(f.content), io.LimitReader(zeros{}, max(0, f.Size-int64(len(f.content)))))
		if _, err := io.Copy(io.MultiWriter(archive, sum), content); err != nil {
			t.Fatal(err)
		}
		hasSums = hasSums || f.Name == "SHA256SUMS"
		fmt.Fprintf(&sums, "%x  %s\n", sum.Sum(nil), f.Name)
	}
	for _, f := range files {
		write(f)
	}
	if !hasSums {
		write(archiveFile{tar.Header{Name: "SHA256SUMS"}, []byte(sums.String())})
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(zipped, io.LimitReader(zeros{}, trailingBytes)); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// dirContent returns the files below a directory with mode and content.
func dirContent(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			found[path] = "directory"
			return err
		}
		text, err := os.ReadFile(path)
		found[path] = e.Type().String() + string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// newStateOfSnapshot makes a data directory with a variable, and returns its snapshot's files.
func newStateOfSnapshot(t *testing.T, dir string) []archiveFile {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{
		StateFilePath: filepath.Join(dir, store.FileName), KeyFile: filepath.Join(dir, KeyringFile), BuildVersion: "0.1.0", Logger: hclog.NewNullLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = s.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "v", Items: map[string]string{"k": "secret"}})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	if _, err := snapshot.Write(t.Context(), s, snapshot.Options{Version: "0.1.0", WorkDir: t.TempDir()}, &packed); err != nil {
		t.Fatal(err)
	}
	zipped, err := gzip.NewReader(&packed)
	if err != nil {
		t.Fatal(err)
	}
	var files []archiveFile
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return files[:len(files)-1] // without the checksums
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, archiveFile{tar.Header{Name: header.Name, Mode: 0o600}, content})
	}
}

// A snapshot can be saved while the data directory's disk is full, has no inode or is read-only.
func TestSnapshotWithoutDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a tmpfs: needs root")
	}
	s, err := store.Open(t.Context(), store.Config{
		StateFilePath: filepath.Join(t.TempDir(), store.FileName), KeyFile: filepath.Join(t.TempDir(), KeyringFile), BuildVersion: "0.1.0", Logger: hclog.NewNullLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, disk := range []struct {
		name, options string
		flags         uintptr
		inMemory      bool
	}{
		{"writable", "size=16m", 0, false},
		{"full", "size=8k", 0, true},
		{"without an inode", "size=16m,nr_inodes=1", 0, true},
		{"read-only", "size=16m", unix.MS_RDONLY, true},
	} {
		t.Run(disk.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", disk.flags, disk.options); err != nil {
				t.Skip("cannot mount a tmpfs:", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			var text bytes.Buffer
			f, meta, err := WriteSnapshot(t.Context(), s, snapshot.Options{Version: "0.1.0", WorkDir: dir}, hclog.New(&hclog.LoggerOptions{Output: &text}))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if strings.Contains(text.String(), "in memory") != disk.inMemory {
				t.Errorf("want in memory %t, the log has %q", disk.inMemory, text.String())
			}
			saved := t.TempDir()
			if read, err := snapshot.Unpack(f, saved); err != nil || read.Index != meta.Index || !read.HasKeys {
				t.Errorf("snapshot %+v, written %+v, %v", read, meta, err)
			}
			if contents, err := store.InspectFile(filepath.Join(saved, snapshot.StateFile)); err != nil || contents.DamageErr() != nil {
				t.Errorf("state of the snapshot: %v, %v", err, contents)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
				t.Errorf("files remain: %v, %v", entries, err)
			}
		})
	}
}

// Each hostile snapshot is refused with its file's name, soon and with a limited size, and the data directory is as before.
func TestHostileSnapshots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	valid := newStateOfSnapshot(t, dir)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	replace := func(name string, size int64, content []byte) []archiveFile {
		files := slices.Clone(valid)
		for i := range files {
			if files[i].Name == name {
				files[i] = archiveFile{tar.Header{Name: name, Mode: 0o600, Size: size}, content}
			}
		}
		return files
	}
	contentOf := func(name string) []byte {
		return bytes.Clone(valid[slices.IndexFunc(valid, func(f archiveFile) bool { return f.Name == name })].content)
	}
	add := func(f archiveFile) []archiveFile { return append(slices.Clone(valid), f) }
	state, keys := contentOf(snapshot.StateFile), contentOf(snapshot.KeyFile)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	var hugeKey map[string][]map[string]any
	if err := json.Unmarshal(keys, &hugeKey); err != nil {
		t.Fatal(err)
	}
	hugeKey["Keys"][0]["RSAKey"] = make([]byte, 600<<10)
	hugeKeyFile, err := json.Marshal(hugeKey)
	if err != nil {
		t.Fatal(err)
	}
	damagedState := bytes.Clone(state)
	for at := 2 * 4096; at < len(state); at++ { // after the two heads
		damagedState[at] ^= byte(random.IntN(256))
	}
	metaSum := fmt.Sprintf("%x  meta.json\n", sha256.Sum256(contentOf("meta.json")))
	whole := packArchive(t, valid, 0)
	for _, c := range []struct {
		name    string
		packed  []byte
		wantErr string
	}{
		{"a state file of zeros", packArchive(t, replace("state.db", 1<<30+1+random.Int64N(1<<29), nil), 0), "state.db has"},
		{"a key file of zeros", packArchive(t, replace("keyring.json", 2<<20+random.Int64N(1<<28), nil), 0), "keyring.json has"},
		{"a description of zeros", packArchive(t, replace("meta.json", 2<<20+random.Int64N(1<<28), nil), 0), "meta.json has"},
		{"a description of many levels", packArchive(t, replace("meta.json", 0, bytes.Repeat([]byte("["), 60e3)), 0), "meta.json"},
		{"an end of zeros", packArchive(t, valid, 1<<30+4<<20+random.Int64N(1<<29)), "too much data"},
		{"a file above", packArchive(t, add(archiveFile{tar.Header{Name: "../outside"}, []byte("x")}), 0), `"../outside"`},
		{"an absolute name", packArchive(t, add(archiveFile{tar.Header{Name: outside}, []byte("x")}), 0), "outside"},
		{"a link", packArchive(t, replaceHeader(valid, "state.db", tar.Header{Name: "state.db", Typeflag: tar.TypeSymlink, Linkname: filepath.Join(dir, "state.db")}), 0), "state.db is not a regular file"},
		{"a hard link", packArchive(t, replaceHeader(valid, "state.db", tar.Header{Name: "state.db", Typeflag: tar.TypeLink, Linkname: filepath.Join(dir, "state.db")}), 0), "state.db is not a regular file"},
		{"a device", packArchive(t, replaceHeader(valid, "keyring.json", tar.Header{Name: "keyring.json", Typeflag: tar.TypeChar}), 0), "keyring.json is not a regular file"},
		{"a file twice", packArchive(t, add(valid[1+random.IntN(len(valid)-1)]), 0), "is in it twice"},
		{"checksums twice", packArchive(t, append(add(archiveFile{tar.Header{Name: "SHA256SUMS"}, []byte(metaSum)}), archiveFile{tar.Header{Name: "SHA256SUMS"}, nil}), 0), "SHA256SUMS is in it twice"},
		{"a checksum several times", packArchive(t, add(archiveFile{tar.Header{Name: "SHA256SUMS"}, []byte(strings.Repeat(metaSum, len(valid)))}), 0), "checksum is missing"},
		{"a state that is none", packArchive(t, replace("state.db", 0, []byte("hello")), 0), "is damaged"},
		{"a damaged state", packArchive(t, replace("state.db", 0, damagedState), 0), "damaged"},
		{"a state of another format", packArchive(t, replace("state.db", 0, state[:2*4096]), 0), "damaged"},
		{"keys that are none", packArchive(t, replace("keyring.json", 0, []byte(strings.Repeat("[", 20e3))), 0), "it is not the JSON of a key file"},
		{"an RSA key of half a megabyte", packArchive(t, replace("keyring.json", 0, hugeKeyFile), 0), "the RSA key of key"},
		{"a part", whole[:1+random.IntN(len(whole)-1)], "snapshot"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := dirContent(t, filepath.Dir(dir))
			written := watchBytes(t, filepath.Join(dir, restoreDir))
			start := time.Now()
			_, err := RestoreSnapshot(t.Context(), dir, bytes.NewReader(c.packed), "0.1.0", hclog.NewNullLogger())
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("error %v, want %q", err, c.wantErr)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("refused after %v", took)
			}
			if n := written(); n > 1<<31 {
				t.Errorf("%d bytes were written", n)
			}
			after := dirContent(t, filepath.Dir(dir))
			delete(after, filepath.Join(dir, LockFile))
			delete(before, filepath.Join(dir, LockFile))
			if len(before) != len(after) {
				t.Errorf("%d files, want %d", len(after), len(before))
			}
			for path, want := range before {
				if after[path] != want {
					t.Errorf("%s was changed", path)
				}
			}
			t.Logf("%v, %d bytes: %.300v", time.Since(start).Round(time.Millisecond), len(c.packed), err)
		})
	}
	if _, err := RestoreSnapshot(t.Context(), dir, bytes.NewReader(whole), "0.1.0", hclog.NewNullLogger()); err != nil {
		t.Errorf("the valid snapshot: %v", err)
	}
}

// replaceHeader returns the files, with the named file replaced by one that has only a header.
func replaceHeader(files []archiveFile, name string, header tar.Header) []archiveFile {
	files = slices.Clone(files)
	i := slices.IndexFunc(files, func(f archiveFile) bool { return f.Name == name })
	files[i] = archiveFile{Header: header}
	return files
}

// watchBytes measures the size of the files in a directory until the returned function is called, which returns the largest.
func watchBytes(t *testing.T, dir string) func() int64 {
	stop, result := make(chan struct{}), make(chan int64)
	go func() {
		var largest int64
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			var size int64
			entries, _ := os.ReadDir(dir) // missing before and after the restore
			for _, e := range entries {
				if info, err := e.Info(); err == nil {
					size += info.Size()
				}
			}
			largest = max(largest, size)
			select {
			case <-ticker.C:
			case <-stop:
				result <- largest
				return
			}
		}
	}()
	return func() int64 { close(stop); return <-result }
}
