package artifact

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

const (
	reportInterval = time.Second     // between two reports of the download process
	eventInterval  = 2 * time.Second // before the first event about a download, and between two events
)

// progressReport is a line of JSON that the download process writes to its standard output.
type progressReport struct {
	Received  int64 `json:"received"`            // bytes
	Total     int64 `json:"total,omitempty"`     // bytes; 0 if the server did not send the size
	Unpacking bool  `json:"unpacking,omitempty"` // the whole file was received
}

// transferCounter counts what a download process receives. All methods can be called concurrently.
type transferCounter struct {
	received, total atomic.Int64
	unpacking       atomic.Bool
}

// Write counts the bytes of a file.
func (c *transferCounter) Write(p []byte) (int, error) {
	c.received.Add(int64(len(p)))
	return len(p), nil
}

// writeReports writes a report whenever the counter has changed, at most once in reportInterval, until ctx
// ends, and a last report then. Before each report it calls update.
func (c *transferCounter) writeReports(ctx context.Context, out io.Writer, update func()) {
	ticker := time.NewTicker(reportInterval)
	defer ticker.Stop()
	var last progressReport
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
		update()
		r := progressReport{Received: c.received.Load(), Total: c.total.Load(), Unpacking: c.unpacking.Load()}
		if r == last {
			continue
		}
		last = r
		line, _ := json.Marshal(r) // cannot fail: numbers and a boolean only
		if _, err := out.Write(append(line, '\n')); err != nil {
			return
		}
	}
}

// updateCounter counts what git has received, the size of the repository's pack files, or hg, the size of its
// store. Both print their own progress in a form for people only. For other sources updateCounter does nothing.
func (d *downloader) updateCounter() {
	received := map[string]string{"git": ".git/objects/pack", "hg": ".hg/store"}[d.sourceType]
	if received == "" {
		return
	}
	size := int64(0)
	_ = fs.WalkDir(d.stagingRoot.FS(), path.Join(repositoryDirName, received), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // both programs remove files during the walk
		}
		if info, err := e.Info(); err == nil {
			size += info.Size()
		}
		return nil
	})
	d.counter.received.Store(size)
}

// progressTracker emits task events with the progress of one download, and one with its result. Each event replaces the
// one before. A download that ends within eventInterval has no such event.
type progressTracker struct {
	name string // of the file or repository, for users
	emit func(context.Context, hook.Event)

	started time.Time

	mu      sync.Mutex
	partial []byte // start of a line of the download process
	report  progressReport
}

// newProgressTracker returns the tracker of the artifact's download.
func (h *Hook) newProgressTracker(req *hook.TaskPrestartRequest, a artifact) *progressTracker {
	key := a.key()
	return &progressTracker{
		name:    displayName(a.Source),
		started: time.Now(),
		emit: func(ctx context.Context, e hook.Event) {
			e.OperationID = key
			h.emitEvent(ctx, req, e)
		},
	}
}

// displayName returns the last element of the path of a source.
func displayName(source string) string {
	source, _, _ = strings.Cut(redactSource(source), "?")
	return path.Base(source)
}

// maxReportLen is the maximum length of a report in bytes; longer lines are ignored.
const maxReportLen = 256

// Write reads the reports of the download process. A compromised process can write anything, so Write ignores
// what is not a report.
func (t *progressTracker) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range bytes.Lines(p) {
		t.partial = append(t.partial, line[:min(len(line), maxReportLen)]...)
		if len(t.partial) > maxReportLen {
			t.partial = t.partial[:maxReportLen]
		}
		if !bytes.HasSuffix(line, []byte("\n")) {
			continue
		}
		var r progressReport
		if json.Unmarshal(t.partial, &r) == nil && r.Received >= 0 && r.Total >= 0 {
			if r.Received == 0 { // the process only unpacks what another process has received
				r.Received, r.Total = t.report.Received, t.report.Total
			}
			t.report = r
		}
		t.partial = t.partial[:0]
	}
	return len(p), nil
}

func (t *progressTracker) latest() progressReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.report
}

// start emits events in the background. The caller must call the returned function with the result of the
// download, which blocks until the last event is emitted.
func (t *progressTracker) start(ctx context.Context) (finish func(error)) {
	runCtx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { t.run(runCtx) })
	return func(err error) {
		cancel()
		wg.Wait()
		if elapsed := time.Since(t.started); elapsed >= eventInterval {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventInterval)
			defer cancel()
			t.emit(ctx, hook.Event{Message: t.formatResult(err, elapsed)})
		}
	}
}

func (t *progressTracker) run(ctx context.Context) {
	ticker := time.NewTicker(eventInterval)
	defer ticker.Stop()
	received, at := int64(0), t.started
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			r := t.latest()
			bytesPerSecond := float64(r.Received-received) / now.Sub(at).Seconds()
			received, at = r.Received, now
			t.emit(ctx, hook.Event{Message: t.formatProgress(r, bytesPerSecond), Ongoing: true})
		}
	}
}

// formatProgress returns, for example, "app.tar.gz: 12 MB of 40 MB, 3100 kB/s".
func (t *progressTracker) formatProgress(r progressReport, bytesPerSecond float64) string {
	if r.Unpacking {
		return fmt.Sprintf("%s: unpacking %s", t.name, formatSize(r.Received))
	}
	text := fmt.Sprintf("%s: %s", t.name, formatSize(r.Received))
	if r.Total > 0 {
		text += " of " + formatSize(r.Total)
	}
	return fmt.Sprintf("%s, %s/s", text, formatSize(int64(max(0, bytesPerSecond))))
}

func (t *progressTracker) formatResult(err error, elapsed time.Duration) string {
	r := t.latest()
	if err != nil {
		return fmt.Sprintf("%s: failed after %s, %s", t.name, elapsed.Round(time.Second), formatSize(r.Received))
	}
	return fmt.Sprintf("%s: %s downloaded in %s", t.name, formatSize(max(r.Received, r.Total)), elapsed.Round(time.Second))
}
