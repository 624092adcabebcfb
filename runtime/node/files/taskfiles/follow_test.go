package taskfiles

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// testFollower collects a Follow's chunks.
type testFollower struct {
	chunks    chan FollowChunk
	followErr chan error
	cancel    context.CancelFunc
}

func startFollower(t testing.TB, d *AllocDir, path string, r FollowRequest) *testFollower {
	t.Helper()
	f, err := d.OpenUnprotectedFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	follower := &testFollower{make(chan FollowChunk, 100), make(chan error, 1), cancel}
	go func() {
		defer f.Close()
		defer close(follower.chunks)
		follower.followErr <- f.Follow(ctx, r, func(c FollowChunk) error {
			c.Data = append([]byte(nil), c.Data...)
			select {
			case follower.chunks <- c:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	return follower
}

func (f *testFollower) expectChunk(t testing.TB, data, event string, offset int64) {
	t.Helper()
	select {
	case c, open := <-f.chunks:
		if !open {
			t.Fatalf("ended with %v, want %q %q", <-f.followErr, data, event)
		}
		if string(c.Data) != data || c.Event != event || c.EndOffset != offset {
			t.Fatalf("%q %q up to %d, want %q %q up to %d", c.Data, c.Event, c.EndOffset, data, event, offset)
		}
	case <-time.After(time.Minute):
		t.Fatalf("nothing comes, want %q %q", data, event)
	}
}

func (f *testFollower) end(t testing.TB) error {
	t.Helper()
	f.cancel()
	select {
	case err := <-f.followErr:
		return err
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
		return nil
	}
}

func appendToFile(t testing.TB, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestFollow(t *testing.T) {
	d, base := newAllocDir(t)
	path := filepath.Join(base, "alloc/data/a")
	f := startFollower(t, d, "alloc/data/a", FollowRequest{})
	f.expectChunk(t, "a", "", 1)
	appendToFile(t, path, "bcd")
	f.expectChunk(t, "bcd", "", 4)

	// A file that has become shorter counts as truncated.
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.expectChunk(t, "", EventTruncated, 0)
	f.expectChunk(t, "x", "", 1)

	// Data that was written before the file was deleted is still passed on.
	appendToFile(t, path, "y")
	f.expectChunk(t, "y", "", 2)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.expectChunk(t, "", EventDeleted, 2)
	if err := f.end(t); err != nil {
		t.Errorf("deleted: %v", err)
	}
}

func TestFollowFrom(t *testing.T) {
	d, base := newAllocDir(t)
	if err := os.WriteFile(filepath.Join(base, "alloc/data/a"), []byte("0123456789"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		FollowRequest
		want string
	}{
		{"the start", FollowRequest{StopAtEnd: true}, "0123456789"},
		{"behind the start", FollowRequest{OffsetFromOrigin: 4, StopAtEnd: true}, "456789"},
		{"behind the end", FollowRequest{OffsetFromOrigin: 40, StopAtEnd: true}, ""},
		{"the end", FollowRequest{Origin: FromEnd, StopAtEnd: true}, ""},
		{"before the end", FollowRequest{Origin: FromEnd, OffsetFromOrigin: 3, StopAtEnd: true}, "789"},
		{"before the start", FollowRequest{Origin: FromEnd, OffsetFromOrigin: 30, StopAtEnd: true}, "0123456789"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := startFollower(t, d, "alloc/data/a", c.FollowRequest)
			if err := <-f.followErr; err != nil {
				t.Fatal(err)
			}
			got := ""
			for chunk := range f.chunks {
				got += string(chunk.Data)
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	f := startFollower(t, d, "alloc/data/a", FollowRequest{})
	f.expectChunk(t, "0123456789", "", 10)
	if err := f.end(t); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	file, err := d.OpenUnprotectedFile("alloc/data/a")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	gone := errors.New("gone")
	if err := file.Follow(t.Context(), FollowRequest{}, func(FollowChunk) error { return gone }); err != gone {
		t.Errorf("the reader has gone: %v", err)
	}
}

// Many followers in many files share one inotify queue, and leak nothing.
func TestManyFollowers(t *testing.T) {
	d, base := newAllocDir(t)
	goroutines, open := runtime.NumGoroutine(), openDescriptors(t)
	const followerCount = 200
	var followers []*testFollower
	for i := range followerCount {
		path := []string{"alloc/data/a", "alloc/logs/b"}[i%2]
		followers = append(followers, startFollower(t, d, path, FollowRequest{Origin: FromEnd}))
	}
	var readersWG sync.WaitGroup
	for _, f := range followers {
		readersWG.Go(func() {
			var receivedText strings.Builder
			for !strings.HasSuffix(receivedText.String(), "end\n") {
				receivedText.Write((<-f.chunks).Data)
			}
		})
	}
	stop := make(chan struct{})
	var writerWG sync.WaitGroup
	writerWG.Go(func() {
		for {
			appendToFile(t, filepath.Join(base, "alloc/data/a"), "end\n")
			appendToFile(t, filepath.Join(base, "alloc/logs/b"), "end\n")
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	readersWG.Wait()
	close(stop)
	writerWG.Wait()
	for _, f := range followers {
		_ = f.end(t)
	}
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > goroutines || openDescriptors(t) > open; {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before; %d descriptors, %d before", runtime.NumGoroutine(), goroutines, openDescriptors(t), open)
		}
		time.Sleep(time.Millisecond)
	}
	if d.opener.watcher.instance != nil || len(d.opener.watcher.fileByWatchDescriptor) > 0 {
		t.Error("somebody is still watched")
	}
}
