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
	reportInterval = time.Second     // interval between two reports of the download process
	eventInterval  = 2 * time.Second // interval before the first event about a download, and between two events
)

// progressReport is a line of JSON that the download process writes to its standard output.
type progressReport struct {
	ReceivedBytes int64 `json:"received"`            // received bytes
	TotalBytes    int64 `json:"total,omitempty"`     // size of the file in bytes; 0 if the server did not send the size
	Unpacking     bool  `json:"unpacking,omitempty"` // true when the whole file was received
}

// transferCounter counts what a download process receives. All methods can be called concurrently.
type transferCounter struct {
	receivedBytes, totalBytes atomic.Int64
	isUnpacking               atomic.Bool
}

// Write counts the bytes of a file.
func (c *transferCounter) Write(p []byte) (int, error) {
	c.receivedBytes.Add(int64(len(p)))
	return len(p), nil
}

// writeProgressReports writes a report whenever the counter has changed, at most once in reportInterval,
// until ctx ends. It calls beforeReport each time before it compares the counter, and once more after the
// end of ctx.
func (c *transferCounter) writeProgressReports(ctx context.Context, out io.Writer, beforeReport func()) {
	ticker := time.NewTicker(reportInterval)
	defer ticker.Stop()
	var last progressReport
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
		beforeReport()
		r := progressReport{ReceivedBytes: c.receivedBytes.Load(), TotalBytes: c.totalBytes.Load(), Unpacking: c.isUnpacking.Load()}
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

// updateReceivedRepositoryBytes sets the received bytes to the size of the repository's pack files for git, or of
// the store for hg, because both programs print their progress only in a form for people. For other
// sources updateReceivedRepositoryBytes does nothing.
func (d *downloader) updateReceivedRepositoryBytes() {
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
	d.transferCounter.receivedBytes.Store(size)
}

// progressTracker emits task events with the progress of one download, and one with its result.
// Each event replaces the previous one. A download that takes less than eventInterval emits none of
// them.
type progressTracker struct {
	sourceName string // name of the file or repository, for messages
	emitEvent  func(context.Context, hook.Event)

	downloadStartTime time.Time

	mu          sync.Mutex
	partialLine []byte // start of a line that the download process has not yet completed
	lastReport  progressReport
}

// newProgressTracker returns the tracker of the artifact's download.
func (h *Hook) newProgressTracker(req *hook.TaskPrestartRequest, a artifact) *progressTracker {
	key := a.blockHash()
	return &progressTracker{
		sourceName:        sourceNameForMessages(a.Source),
		downloadStartTime: time.Now(),
		emitEvent: func(ctx context.Context, e hook.Event) {
			e.OperationID = key
			h.emitDownloadEvent(ctx, req, e)
		},
	}
}

// sourceNameForMessages returns the last element of the path of a source.
func sourceNameForMessages(source string) string {
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
		t.partialLine = append(t.partialLine, line[:min(len(line), maxReportLen)]...)
		if len(t.partialLine) > maxReportLen {
			t.partialLine = t.partialLine[:maxReportLen]
		}
		if !bytes.HasSuffix(line, []byte("\n")) {
			continue
		}
		var r progressReport
		if json.Unmarshal(t.partialLine, &r) == nil && r.ReceivedBytes >= 0 && r.TotalBytes >= 0 {
			if r.ReceivedBytes == 0 { // this process only unpacks the file that another process has received
				r.ReceivedBytes, r.TotalBytes = t.lastReport.ReceivedBytes, t.lastReport.TotalBytes
			}
			t.lastReport = r
		}
		t.partialLine = t.partialLine[:0]
	}
	return len(p), nil
}

func (t *progressTracker) latestReport() progressReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lastReport
}

// startProgressEvents emits progress events in the background. The caller must call finish with the error of the
// download; finish blocks until the last event is emitted.
func (t *progressTracker) startProgressEvents(ctx context.Context) (finish func(error)) {
	runCtx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { t.emitProgressEvents(runCtx) })
	return func(err error) {
		cancel()
		wg.Wait()
		if elapsed := time.Since(t.downloadStartTime); elapsed >= eventInterval {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventInterval)
			defer cancel()
			t.emitEvent(ctx, hook.Event{Message: t.formatResult(err, elapsed)})
		}
	}
}

func (t *progressTracker) emitProgressEvents(ctx context.Context) {
	ticker := time.NewTicker(eventInterval)
	defer ticker.Stop()
	received, at := int64(0), t.downloadStartTime
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			r := t.latestReport()
			bytesPerSecond := float64(r.ReceivedBytes-received) / now.Sub(at).Seconds()
			received, at = r.ReceivedBytes, now
			t.emitEvent(ctx, hook.Event{Message: t.formatProgress(r, bytesPerSecond), Ongoing: true})
		}
	}
}

// formatProgress returns, for example, "app.tar.gz: 12 MB of 40 MB, 3100 kB/s".
func (t *progressTracker) formatProgress(r progressReport, bytesPerSecond float64) string {
	if r.Unpacking {
		return fmt.Sprintf("%s: unpacking %s", t.sourceName, formatSize(r.ReceivedBytes))
	}
	text := fmt.Sprintf("%s: %s", t.sourceName, formatSize(r.ReceivedBytes))
	if r.TotalBytes > 0 {
		text += " of " + formatSize(r.TotalBytes)
	}
	return fmt.Sprintf("%s, %s/s", text, formatSize(int64(max(0, bytesPerSecond))))
}

func (t *progressTracker) formatResult(err error, elapsed time.Duration) string {
	r := t.latestReport()
	if err != nil {
		return fmt.Sprintf("%s: failed after %s, %s", t.sourceName, elapsed.Round(time.Second), formatSize(r.ReceivedBytes))
	}
	return fmt.Sprintf("%s: %s downloaded in %s", t.sourceName, formatSize(max(r.ReceivedBytes, r.TotalBytes)), elapsed.Round(time.Second))
}
