package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// request is the order that the downloading process reads from standard input.
type request struct {
	Source   string
	Options  map[string]string
	Headers  map[string]string
	Mode     string // "any", "file" or "dir"
	Insecure bool
	Limits   Limits
	Step     step
	Env      map[string]string
}

// isGit reports whether the source is a repository.
func (o *request) isGit() bool {
	src, err := parseSource(o.Source, o.Options)
	return err == nil && src.kind == "git"
}

// step is the part of a download that one process does.
type step string

// A file with a checksum takes two steps. In between the hook compares the
// checksum, when the first process no longer has access to the file.
const (
	stepAll    step = ""
	stepFetch  step = "fetch"  // downloads the file and, if the source names a file of checksums, stores the expected checksum
	stepUnpack step = "unpack" // unpacks the file, which exists already
)

// stageFD is the descriptor of the directory in which the process works. The
// process leaves its output there under the name result: a file in mode file,
// else a directory with the content of the destination.
const (
	stageFD = 3

	result   = "result"
	fetched  = "file"
	sumFile  = "checksum"
	unpacked = "scratch/unpacked"
	scratch  = "scratch"
)

// Download is the main function of the process that makes one download, and
// returns its exit code. It reads an order from in, and writes errors to stderr.
// It exits when in is closed, which means that its caller has exited.
func Download(in io.Reader, stderr io.Writer) int {
	// This comes first: the order may have secrets, which other processes of the
	// same user must not read. Processes that the download starts are protected
	// by their user id.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintf(stderr, "hide the memory of the download: %v\n", err)
		return 1
	}
	if err := runDownload(in); err != nil {
		fmt.Fprintf(stderr, "failed to download artifact: %v\n", err)
		return 1
	}
	return 0
}

func runDownload(in io.Reader) error {
	var o request
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return fmt.Errorf("read what to download (the hook artifact starts this command): %w", err)
	}
	if err := unix.Fchdir(stageFD); err != nil {
		return fmt.Errorf("enter the directory of the download: %w", err)
	}
	unix.Close(stageFD) // git must not inherit the descriptor
	for name, value := range o.Env {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("the variable %s: %w", name, err)
		}
	}
	go func() { // runs until the process exits
		_, _ = io.Copy(io.Discard, in)
		_ = syscall.Kill(0, syscall.SIGKILL) // includes git and its children
		os.Exit(1)                           // init of a PID namespace survives the signal
	}()
	return download(context.Background(), o)
}

// downloader makes one download into the working directory.
type downloader struct {
	request
	*source
	stage *os.Root
}

func download(ctx context.Context, o request) error {
	src, err := parseSource(o.Source, o.Options)
	if err != nil {
		return err
	}
	stage, err := os.OpenRoot(".")
	if err != nil {
		return err
	}
	defer stage.Close()
	if err := stage.Mkdir(scratch, 0o700); err != nil {
		return err
	}
	d := &downloader{request: o, source: src, stage: stage}
	if src.kind == "git" {
		ctx, cancel := timeout(ctx, o.Limits.GitTimeout, "git_timeout")
		defer cancel()
		return d.git(ctx)
	}
	ctx, cancel := timeout(ctx, o.Limits.HTTPTimeout, "http_read_timeout")
	defer cancel()
	return d.file(ctx)
}

func timeout(ctx context.Context, d time.Duration, setting string) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("not done after %v: see %s in the client's artifact block", d, setting))
}

// file downloads a file, and unpacks it if it is an archive.
func (d *downloader) file(ctx context.Context) error {
	name, err := d.name()
	if err != nil {
		return err
	}
	if d.Step == stepFetch && d.listed() {
		if err := d.findSum(ctx, name); err != nil {
			return err
		}
	}
	if d.Step != stepUnpack {
		if err := d.fetch(ctx, fetched); err != nil {
			return err
		}
	}
	if d.Step == stepFetch {
		return nil
	}
	format, err := findFormat(path.Base(d.url.Path), d.archive)
	if err != nil {
		return err
	}
	if format == nil {
		return d.deliverFile(name)
	}
	if format.entries == nil {
		name = format.trim(name)
	}
	if err := d.unpack(ctx, format, fetched, unpacked); err != nil {
		return fmt.Errorf("unpack %s: %w", path.Base(d.url.Path), err)
	}
	return d.part(unpacked, name)
}

// deliverFile delivers the downloaded file unchanged.
func (d *downloader) deliverFile(name string) error {
	if d.sub != "" {
		return fmt.Errorf("%q of %s is wanted, which is no archive", d.sub, name)
	}
	return d.deliver(fetched, name)
}

// findSum downloads the file of checksums and stores the checksum of the file.
func (d *downloader) findSum(ctx context.Context, name string) error {
	of, err := parseSource(strings.TrimPrefix(d.checksum, checksumList), nil)
	if err != nil {
		return fmt.Errorf("file of checksums: %w", err)
	}
	other := &downloader{request: d.request, source: of, stage: d.stage}
	other.Headers = nil // the headers are meant for the source only
	r, err := other.open(ctx)
	if err != nil {
		return fmt.Errorf("file of checksums: %w", err)
	}
	defer r.Close()
	text, err := findChecksum(io.LimitReader(r, 1<<20), name)
	if err != nil {
		return err
	}
	if _, err := parseChecksum(text); err != nil {
		return err // reported before the download
	}
	return d.stage.WriteFile(sumFile, []byte(text), 0o600)
}

// fetch downloads the file of the source.
func (d *downloader) fetch(ctx context.Context, to string) error {
	r, err := d.open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := d.stage.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	w := io.Writer(f)
	if limit := d.Limits.HTTPMaxSize; limit > 0 {
		w = io.MultiWriter(&meter{left: limit, full: d.tooLarge}, f)
	}
	if _, err := io.Copy(w, r); err != nil {
		return cause(ctx, err)
	}
	return f.Close()
}

func (d *downloader) tooLarge() error {
	return fmt.Errorf("the download is larger than %s: see http_max_size in the client's artifact block", size(d.Limits.HTTPMaxSize))
}

// open opens the file of the source for reading.
func (d *downloader) open(ctx context.Context) (io.ReadCloser, error) {
	switch d.kind {
	case "http":
		return d.get(ctx)
	case "file":
		return d.readLocal()
	}
	return nil, unsupported(d.url.Scheme)
}

// readLocal opens a file of this machine, if the operator has listed it or a
// directory above it.
func (d *downloader) readLocal() (io.ReadCloser, error) {
	name := path.Clean(d.url.Path)
	if d.url.Host != "" || !path.IsAbs(name) {
		return nil, unsupported("file")
	}
	for _, p := range d.Limits.paths() {
		if !p.read() || p.path != name && !strings.HasPrefix(name, strings.TrimSuffix(p.path, "/")+"/") {
			continue
		}
		dir, rest := p.path, strings.TrimPrefix(name[len(p.path):], "/")
		if rest == "" {
			dir, rest = path.Split(name)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		// Without O_NONBLOCK, opening a FIFO would block.
		f, err := root.OpenFile(rest, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			f.Close()
			return nil, errors.Join(err, fmt.Errorf("%s is no regular file; a directory can be packed into an archive", name))
		}
		return f, nil
	}
	return nil, unsupported("file")
}

// part delivers the requested part of a tree.
func (d *downloader) part(tree, name string) error {
	if d.sub != "" {
		part, err := d.find(tree)
		if err != nil {
			return err
		}
		tree, name = part, path.Base(part)
	}
	info, err := d.stage.Lstat(tree)
	if err != nil {
		return fmt.Errorf("there is no %q in it", d.sub)
	}
	switch {
	case info.Mode().IsRegular():
		return d.deliver(tree, name)
	case !info.IsDir():
		return fmt.Errorf("%q is neither a file nor a directory", d.sub)
	case d.Mode != "file":
		return d.stage.Rename(tree, result)
	}
	entries, err := fs.ReadDir(d.stage.FS(), tree)
	if err != nil {
		return err
	}
	if len(entries) != 1 || !entries[0].Type().IsRegular() {
		return errors.New("expected a single file")
	}
	return d.stage.Rename(path.Join(tree, entries[0].Name()), result)
}

// find returns the requested part of a tree, which is given by its name or by a
// pattern.
func (d *downloader) find(tree string) (string, error) {
	part := path.Join(tree, d.sub)
	if _, err := d.stage.Lstat(part); err == nil || !strings.ContainsAny(d.sub, "*?[") {
		return part, nil
	}
	found, err := fs.Glob(d.stage.FS(), part)
	if err != nil {
		return "", fmt.Errorf("the part %q of the source: %w", d.sub, err)
	}
	if len(found) > 1 {
		return "", fmt.Errorf("%q of the source is %d things in it, of which one is wanted", d.sub, len(found))
	}
	return append(found, part)[0], nil
}

// deliver moves one file to the result.
func (d *downloader) deliver(file, name string) error {
	switch d.Mode {
	case "file":
		return d.stage.Rename(file, result)
	case "dir":
		return fmt.Errorf("%s is one file, and mode is dir: use mode any or file", name)
	}
	if err := d.stage.Mkdir(result, 0o755); err != nil {
		return err
	}
	return d.stage.Rename(file, path.Join(result, name))
}

// meter is a writer that fails with full when its limit is exceeded.
type meter struct {
	left int64
	full func() error
}

func (m *meter) Write(p []byte) (int, error) {
	if m.left -= int64(len(p)); m.left < 0 {
		return 0, m.full()
	}
	return len(p), nil
}

// cause returns the cause of the context's end, if err is a result of that.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return unwrapURL(err)
}

// unwrapURL removes the URL from an error: the caller knows it, and it may have
// a password.
func unwrapURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// size formats a number of bytes for display.
func size(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for ; n >= 10000 && i < len(units)-1; i++ {
		n /= 1000
	}
	return fmt.Sprintf("%d %s", n, units[i])
}
