package taskapi

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// listen makes a socket, as allocdir does.
func listen(t testing.TB, path string) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 512))
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func newListener(t testing.TB) *TaskSocketListener {
	t.Helper()
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestListenerNamesTasks(t *testing.T) {
	dir := t.TempDir()
	l := newListener(t)
	for _, name := range []string{"web", "db"} {
		if err := l.AddOrReplaceSocket(TaskAddr{"alloc", name}, listen(t, filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	var serveWG sync.WaitGroup
	serveWG.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				return
			}
			fmt.Fprint(c, c.RemoteAddr().Network(), " ", c.RemoteAddr())
			c.Close()
		}
	})
	var clientsWG sync.WaitGroup
	for range 20 {
		for _, name := range []string{"web", "db"} {
			clientsWG.Go(func() {
				c, err := net.Dial("unix", filepath.Join(dir, name))
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if text, err := io.ReadAll(c); string(text) != "task alloc/"+name || err != nil {
					t.Errorf("%s: %q, %v", name, text, err)
				}
			})
		}
	}
	clientsWG.Wait()

	// A new socket replaces the former one.
	again := filepath.Join(dir, "again")
	if err := l.AddOrReplaceSocket(TaskAddr{"alloc", "web"}, listen(t, again)); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("unix", filepath.Join(dir, "web")); err == nil {
		t.Error("the former socket accepts connections")
	}
	c, err := net.Dial("unix", again)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(c); string(text) != "task alloc/web" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	c.Close()
	l.RemoveSocket(TaskAddr{"alloc", "web"})
	l.RemoveSocket(TaskAddr{"alloc", "web"})
	if _, err := net.Dial("unix", again); err == nil {
		t.Error("the removed socket accepts connections")
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	serveWG.Wait()
	if _, err := net.Dial("unix", filepath.Join(dir, "db")); err == nil {
		t.Error("a socket of the closed listener accepts connections")
	}
	if err := l.AddOrReplaceSocket(TaskAddr{"alloc", "late"}, listen(t, filepath.Join(dir, "late"))); !errors.Is(err, net.ErrClosed) {
		t.Errorf("add to the closed listener: %v", err)
	}
}

// countThreads returns how many threads this process has.
func countThreads(t testing.TB) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}

func TestManySocketsNeedNoThreads(t *testing.T) {
	l := newListener(t)
	dir := t.TempDir()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	goroutines, threads := runtime.NumGoroutine(), countThreads(t)
	for i := range 200 {
		if err := l.AddOrReplaceSocket(TaskAddr{"alloc", strconv.Itoa(i)}, listen(t, filepath.Join(dir, strconv.Itoa(i)))); err != nil {
			t.Fatal(err)
		}
	}
	if n, m := runtime.NumGoroutine(), countThreads(t); n > goroutines || m > threads+4 {
		t.Errorf("%d goroutines and %d threads more for 200 sockets", n-goroutines, m-threads)
	}
}

// BenchmarkAdd reports one socket's memory: in this process, and in the kernel.
func BenchmarkAdd(b *testing.B) {
	const sockets = 1000
	for b.Loop() {
		l := newListener(b)
		dir := b.TempDir()
		slab := kernelMemory(b)
		before := heapSize()
		for i := range sockets {
			if err := l.AddOrReplaceSocket(TaskAddr{"9a30b60a-07ff-f6ce-ec36-533c48a52b97", strconv.Itoa(i)}, listen(b, filepath.Join(dir, strconv.Itoa(i)))); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(int64(heapSize())-int64(before))/sockets, "heap-B/socket")
		b.ReportMetric(float64(kernelMemory(b)-slab)/sockets, "kernel-B/socket")
		l.Close()
	}
	b.ReportMetric(0, "ns/op")
}

func heapSize() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// kernelMemory returns the machine's kernel object memory. Other processes change it too.
func kernelMemory(b *testing.B) int64 {
	b.Helper()
	time.Sleep(10 * time.Millisecond)
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == "Slab:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n << 10
		}
	}
	return 0
}
