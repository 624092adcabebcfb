package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// writerRounds is the number of starts against each attack of TestOnlyCheckedContentIsExecuted.
const writerRounds = 1000

// makePinnedPlugin makes a plugin that is a copy of a program, and returns its path and its entry, whose block has its checksum.
func makePinnedPlugin(t *testing.T, dir string, program []byte) (string, Entry) {
	t.Helper()
	path := filepath.Join(dir, "x")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	c, err := New(Config{PluginDir: dir, Blocks: []PluginBlock{{Name: "x", SHA256: hex.EncodeToString(sum[:])}}})
	if err != nil {
		t.Fatal(err)
	}
	return path, c.Entries()[0]
}

func readProgram(t *testing.T, name string) []byte {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// A file that a process has open for writing is refused, and a checked file cannot be opened for writing until Close.
func TestPluginWithWriterIsRefused(t *testing.T) {
	program := readProgram(t, "true")
	path, entry := makePinnedPlugin(t, makePluginDir(t), program)
	writer, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := entry.OpenAndCheck(t.Context(), nil); !errors.Is(err, unix.ETXTBSY) {
		t.Errorf("with a writer: %v, %v", b, err)
	}
	// The writer of a shared mapping needs no descriptor.
	readWriter, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	mapping, err := unix.Mmap(int(readWriter.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err = errors.Join(err, writer.Close(), readWriter.Close()); err != nil {
		t.Fatal(err)
	}
	if b, err := entry.OpenAndCheck(t.Context(), nil); !errors.Is(err, unix.ETXTBSY) {
		t.Errorf("with a mapping: %v, %v", b, err)
	}
	if err := unix.Munmap(mapping); err != nil {
		t.Fatal(err)
	}
	b, err := entry.OpenAndCheck(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	// The plugin has a copy of the descriptor, which Close does not close.
	inherited, err := unix.Dup(int(b.File.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	tryWrite := func() error {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	if err := tryWrite(); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("the checked file could be opened for writing: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := tryWrite(); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

// A start executes only content with the required checksum, although another account writes through an earlier descriptor of the file,
// or exchanges the file.
func TestOnlyCheckedContentIsExecuted(t *testing.T) {
	good, evil := readProgram(t, "true"), readProgram(t, "false")
	for name, attack := range map[string]func(t *testing.T, path string, delay time.Duration){
		"write and close": func(t *testing.T, path string, delay time.Duration) {
			writer, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return // the start has a lease, or executes the file
			}
			time.Sleep(delay)
			_, _ = writer.WriteAt(evil, 0) // fails while the start executes the file
			writer.Close()
		},
		"exchange": func(t *testing.T, path string, delay time.Duration) {
			time.Sleep(delay)
			if err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, path+".evil", unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := makePluginDir(t)
			started, refused := 0, 0
			for n := range writerRounds {
				path, entry := makePinnedPlugin(t, dir, good)
				if err := os.WriteFile(path+".evil", evil, 0o755); err != nil {
					t.Fatal(err)
				}
				attacked := make(chan struct{})
				go func() {
					defer close(attacked)
					attack(t, path, time.Duration(n%100)*10*time.Microsecond)
				}()
				if b, err := entry.OpenAndCheck(t.Context(), nil); err != nil {
					refused++
				} else {
					cmd := exec.Command(path)
					cmd.Path, cmd.ExtraFiles = "/proc/self/fd/3", []*os.File{b.File}
					switch err := cmd.Run(); {
					case err == nil:
						started++
					case errors.Is(err, syscall.ETXTBSY):
						refused++
					default:
						t.Errorf("round %d: the start has executed another content: %v", n, err)
					}
					b.Close()
				}
				<-attacked
				if t.Failed() {
					break
				}
				if err := errors.Join(os.Remove(path), os.Remove(path+".evil")); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("started %d, refused %d", started, refused)
			if started == 0 {
				t.Error("no start has succeeded")
			}
		})
	}
}
