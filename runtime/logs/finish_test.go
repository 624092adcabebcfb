package logs

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// What a task has written while nobody collected is collected by an agent that
// never started the task.
func TestFinishCollectsWhatIsLeft(t *testing.T) {
	t.Parallel()
	limits := Limits{MaxFiles: 3, MaxFileSize: 1 << 20}
	s := newSetting(t, Config{})
	stdout, _ := s.start(limits)
	f := s.open(stdout)
	s.write(f, "before\n")
	s.await(Stdout, "before\n")

	// The agent goes, and the collector with it: perhaps by itself.
	s.collector.Close()
	_ = s.collector.Process().Signal(unix.SIGKILL)
	_, _ = s.keeper.Wait(t.Context(), s.collector.Process())
	s.write(f, "meanwhile\n")
	f.Close()

	c, err := New(Config{Keeper: s.keeper, Dir: s.run, Args: []string{"nomad-lite", "log-collector"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 { // the second time there is nothing left
		if err := c.Finish(t.Context(), task(s.dir, limits), true); err != nil {
			t.Fatal(err)
		}
		if _, b := s.files(Stdout); string(b) != "before\nmeanwhile\n" {
			t.Errorf("collected %q", b)
		}
	}
	if keys, err := s.keeper.Keys(t.Context()); err != nil || len(keys) > 0 {
		t.Errorf("the keeper still holds %v, %v", keys, err)
	}
}

// Nothing of a task whose directory is gone stays with the helpers.
func TestFinishWithoutADirectory(t *testing.T) {
	t.Parallel()
	limits := Limits{MaxFiles: 3, MaxFileSize: 1 << 20}
	s := newSetting(t, Config{})
	s.start(limits)
	s.collector.Close()
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Keeper: s.keeper, Dir: s.run, Args: []string{"nomad-lite", "log-collector"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Finish(t.Context(), task(s.dir, limits), true); err != nil {
		t.Fatal(err)
	}
	if keys, err := s.keeper.Keys(t.Context()); err != nil || len(keys) > 0 {
		t.Errorf("the keeper still holds %v, %v", keys, err)
	}
	never := task(t.TempDir()+"/alloc/alloc/logs", limits)
	never.Name = "never"
	if err := c.Finish(t.Context(), never, true); err != nil {
		t.Errorf("a task that was never there: %v", err)
	}
}

// A process that is told so ends at once and leaves its output to the next one.
func TestCollectorQuits(t *testing.T) {
	t.Parallel()
	s := newSetting(t, Config{})
	stdout, _ := s.start(Limits{MaxFiles: 3, MaxFileSize: 1 << 20})
	f := s.open(stdout)
	s.write(f, "one\n")
	s.await(Stdout, "one\n")
	old := s.collector.Process()
	l, err := s.collector.line.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.send(&message{Op: opQuit}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// A client that has noticed the end first has killed what was left of it.
	if status, err := s.keeper.Wait(ctx, old); err != nil || status != (keeper.Status{}) && status.Signal != int(unix.SIGKILL) {
		t.Errorf("it ended with %v, %v", status, err)
	}
	s.write(f, "two\n")
	s.await(Stdout, "one\ntwo\n")
	// The next one may write before the client has made a note of it.
	for s.collector.Process() == old {
		if ctx.Err() != nil {
			t.Fatalf("process %v is still the collector", old)
		}
		time.Sleep(time.Millisecond)
	}
	if now := s.collector.Process(); now.Signal(unix.Signal(0)) != nil {
		t.Errorf("process %v does not run", now)
	}
	f.Close()
	s.stop()
}
