package hooks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

func startStats(t *testing.T, h *StatsHook) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // the end of this context must not end the stream
	if _, err := h.Poststart(ctx, hook.TaskPoststartRequest{}); err != nil {
		t.Fatal(err)
	}
}

func endStats(t *testing.T, h *StatsHook) {
	t.Helper()
	if _, err := h.Exited(t.Context(), hook.TaskExitedRequest{}); err != nil {
		t.Fatal(err)
	}
}

// fakeDriver sends a sample at once, and then at intervals. The samples are numbered by their
// memory.
type fakeDriver struct {
	startTime time.Time

	silent bool // silent means the driver sends nothing

	mu          sync.Mutex
	sampleCount uint64 // sampleCount is the number of samples
	openStreams int    // openStreams is the number of open streams
}

func (f *fakeDriver) openStream(ctx context.Context, interval time.Duration) (<-chan *driver.TaskStats, error) {
	if f.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	stream := make(chan *driver.TaskStats)
	f.mu.Lock()
	f.openStreams++
	f.mu.Unlock()
	go func() {
		defer close(stream)
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.openStreams--
		}()
		for {
			f.mu.Lock()
			f.sampleCount++
			sample := &driver.TaskStats{Timestamp: time.Now()}
			sample.Total.Memory.RSS = f.sampleCount
			f.mu.Unlock()
			select {
			case stream <- sample:
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(interval):
			case <-ctx.Done():
				return
			}
		}
	}()
	return stream, nil
}

func (f *fakeDriver) wantOpenStreams(t *testing.T, want int) {
	t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.openStreams != want {
		t.Errorf("after %v %d streams are open, want %d", time.Since(f.startTime), f.openStreams, want)
	}
}

// wantLatest checks that StartSamplingAndGetLatest returns sample number want without blocking, or no
// sample if want is 0.
func wantLatest(t *testing.T, h *StatsHook, want uint64) {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	sample := h.StartSamplingAndGetLatest(ctx)
	cancel() // the end of this context must not end the stream
	var got uint64
	if sample != nil {
		got = sample.Total.Memory.RSS
	}
	if took := time.Since(begin); got != want || took != 0 {
		t.Errorf("sample %d after %v, want %d at once", got, took, want)
	}
	synctest.Wait()
}

func TestStatsAreSampledOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeDriver{startTime: time.Now()}
		h := NewStatsHook(s.openStream, time.Second, hclog.NewNullLogger())
		wantLatest(t, h, 0) // no process has started
		startStats(t, h)
		time.Sleep(time.Hour)
		s.wantOpenStreams(t, 0) // no stream is open, because StartSamplingAndGetLatest was not called for this process

		wantLatest(t, h, 1)
		s.wantOpenStreams(t, 1)
		wantLatest(t, h, 1)
		time.Sleep(5500 * time.Millisecond)
		wantLatest(t, h, 6)
		s.wantOpenStreams(t, 1) // all calls share one stream
		time.Sleep(streamIdleTimeout - time.Millisecond)
		s.wantOpenStreams(t, 1)
		time.Sleep(2 * time.Millisecond)
		s.wantOpenStreams(t, 0)
		if got := s.sampleCount; got != 16 {
			t.Errorf("%d samples, want 16", got)
		}

		time.Sleep(time.Hour)
		wantLatest(t, h, 17) // StartSamplingAndGetLatest returns a new sample, not the sample from an hour ago
		s.wantOpenStreams(t, 1)
		endStats(t, h)
		s.wantOpenStreams(t, 0)
		wantLatest(t, h, 17) // StartSamplingAndGetLatest keeps returning the last sample, and takes no further ones
		s.wantOpenStreams(t, 0)

		startStats(t, h)
		wantLatest(t, h, 18)
		if _, err := h.Shutdown(t.Context(), hook.TaskShutdownRequest{}); err != nil {
			t.Fatal(err)
		}
		s.wantOpenStreams(t, 0)
		startStats(t, h)
		wantLatest(t, h, 19)
		if _, err := h.Stop(t.Context(), hook.TaskStopRequest{}); err != nil {
			t.Fatal(err)
		}
		s.wantOpenStreams(t, 0)
	})
}

func TestStatsRequestsShareAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeDriver{startTime: time.Now()}
		h := NewStatsHook(s.openStream, time.Second, hclog.NewNullLogger())
		startStats(t, h)
		var callersWG sync.WaitGroup
		for range 20 {
			callersWG.Go(func() {
				if h.StartSamplingAndGetLatest(t.Context()) == nil {
					t.Error("no sample")
				}
			})
		}
		callersWG.Wait()
		s.wantOpenStreams(t, 1)
		endStats(t, h)
	})
}

func TestLatestReturnsWithSilentDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeDriver{startTime: time.Now()}
		s.silent = true
		h := NewStatsHook(s.openStream, time.Second, hclog.NewNullLogger())
		startStats(t, h)
		begin := time.Now()
		if got := h.StartSamplingAndGetLatest(t.Context()); got != nil || time.Since(begin) != firstSampleTimeout {
			t.Errorf("got %v after %v, want nothing after %v", got, time.Since(begin), firstSampleTimeout)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin = time.Now()
		if got := h.StartSamplingAndGetLatest(ctx); got != nil || time.Since(begin) != time.Second {
			t.Errorf("got %v after %v, want nothing when the question ends", got, time.Since(begin))
		}
		endStats(t, h)
	})
}

func TestStatsRetries(t *testing.T) {
	final := &driver.Error{Err: errors.New("stats not implemented for driver")}
	for _, c := range []struct {
		name   string
		answer func(n int) error // answer is the n-th request's result; nil is a stream with one sample
		want   string            // want has the times of the requests within 20 s
	}{
		{"after one interval, when the stream ends", func(int) error { return nil }, "[0s 5s 10s 15s 20s]"},
		{"later and later, when there is an error", func(int) error { return errors.New("x") }, "[0s 1s 3s 7s 12s 17s]"},
		{"soon again, when it worked in between", func(n int) error {
			if n == 2 {
				return nil
			}
			return errors.New("x")
		}, "[0s 1s 3s 8s 9s 11s 15s 20s]"},
		{"not at all, when the driver says that it is of no use", func(int) error { return final }, "[0s]"},
		{"later, when the driver says that it may be of use", func(int) error { return driver.Recoverable(errors.New("x")) }, "[0s 1s 3s 7s 12s 17s]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var mu sync.Mutex
				var requestTimes []time.Duration
				source := func(context.Context, time.Duration) (<-chan *driver.TaskStats, error) {
					mu.Lock()
					defer mu.Unlock()
					requestTimes = append(requestTimes, time.Since(begin))
					if err := c.answer(len(requestTimes) - 1); err != nil {
						return nil, err
					}
					stream := make(chan *driver.TaskStats, 1)
					stream <- &driver.TaskStats{}
					close(stream)
					return stream, nil
				}
				h := NewStatsHook(source, 5*time.Second, hclog.NewNullLogger())
				startStats(t, h)
				for range 20 {
					before := time.Now()
					h.StartSamplingAndGetLatest(t.Context())
					if took := time.Since(before); took != 0 {
						t.Errorf("an answer, or that there is none, took %v", took)
					}
					time.Sleep(time.Second)
				}
				time.Sleep(time.Millisecond)
				endStats(t, h)
				at := len(requestTimes)
				time.Sleep(time.Minute)
				if got := fmt.Sprint(requestTimes[:at]); got != c.want || len(requestTimes) != at {
					t.Errorf("asked at %v and %d times later, want %s", got, len(requestTimes)-at, c.want)
				}
			})
		})
	}
}

func TestStatsContinueWithNextProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		h := NewStatsHook(func(context.Context, time.Duration) (<-chan *driver.TaskStats, error) {
			asked++
			return nil, &driver.Error{Err: errors.New("not of this process")}
		}, time.Second, hclog.NewNullLogger())
		for range 2 {
			startStats(t, h)
			wantLatest(t, h, 0)
			wantLatest(t, h, 0)
			endStats(t, h)
		}
		if asked != 2 {
			t.Errorf("asked %d times about two processes, want once each", asked)
		}
	})
}

// RecentSample has the samples requested by others, and opens no stream.
func TestRecentSampleOpensNoStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeDriver{startTime: time.Now()}
		h := NewStatsHook(f.openStream, time.Second, hclog.NewNullLogger())
		startStats(t, h)
		if sample := h.RecentSample(time.Hour); sample != nil {
			t.Errorf("sample %v, although nothing was sampled", sample)
		}
		f.wantOpenStreams(t, 0)
		h.StartSamplingAndGetLatest(t.Context())
		time.Sleep(5 * time.Second)
		if sample := h.RecentSample(2 * time.Second); sample == nil {
			t.Error("no sample, although the task is sampled")
		}
		time.Sleep(time.Minute)
		f.wantOpenStreams(t, 0) // RecentSample calls do not extend sampling
		if sample := h.RecentSample(2 * time.Second); sample != nil {
			t.Errorf("sample of %v", sample.Timestamp)
		}
		endStats(t, h)
	})
}
