package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// downloadRequest is the JSON that the download process reads from its standard
// input.
type downloadRequest struct {
	Source   string
	Options  map[string]string
	Headers  map[string]string
	Mode     string // "any", "file" or "dir"
	Insecure bool
	Limits   Limits
	Step     downloadStep
	Env      map[string]string
}

// hasRepositorySource reports whether the source is a repository, which a program clones.
func (d *downloadRequest) hasRepositorySource() bool {
	src, err := parseSource(d.Source, d.Options)
	return err == nil && src.isRepository()
}

// downloadStep is the part of a download that a download process performs.
type downloadStep string

// A file with a checksum is downloaded in two steps, each with its own process.
// Between the steps, when the first process has exited, the hook compares the
// checksum.
const (
	stepFetchAndUnpack downloadStep = ""
	stepFetch          downloadStep = "fetch"  // downloads the file and, if the source names a file of checksums, stores the expected checksum
	stepUnpack         downloadStep = "unpack" // unpacks the file that was fetched
)

// stagingDirFD is the file descriptor under which the download process inherits the staging
// directory, its working directory. The process writes its output there under the name
// resultFileName: a file if the mode is "file", else a directory with the content of the
// destination.
const (
	stagingDirFD = 3

	resultFileName   = "result"
	fetchedFileName  = "file"
	checksumFileName = "checksum"
	unpackedDirName  = "scratch/unpacked"
	scratchDirName   = "scratch"

	repositoryDirName = "scratch/repository"
)

// DownloadProcessMain is the main function of the process that makes one download, and returns its exit code.
// It reads the request from stdin, and writes reports of its progress to reportWriter and errors to stderr. The
// process exits when stdin is closed, which means that the hook's process has exited.
func DownloadProcessMain(stdin io.Reader, reportWriter, stderr io.Writer) int {
	// This call comes first: the request may have secrets, and other processes of the same user
	// must not read them from the memory of this process. Processes that the download starts are
	// protected only by their user id.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintf(stderr, "hide the memory of the download: %v\n", err)
		return 1
	}
	if err := readRequestAndDownload(stdin, reportWriter); err != nil {
		fmt.Fprintf(stderr, "failed to download artifact: %v\n", err)
		return 1
	}
	return 0
}

func readRequestAndDownload(stdin io.Reader, reportWriter io.Writer) error {
	var request downloadRequest
	if err := json.NewDecoder(stdin).Decode(&request); err != nil {
		return fmt.Errorf("read what to download (the hook artifact starts this command): %w", err)
	}
	if err := unix.Fchdir(stagingDirFD); err != nil {
		return fmt.Errorf("enter the directory of the download: %w", err)
	}
	unix.Close(stagingDirFD) // git and hg must not inherit the descriptor
	for name, value := range request.Env {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("the variable %s: %w", name, err)
		}
	}
	go func() { // the goroutine runs until the process exits
		_, _ = io.Copy(io.Discard, stdin) // Copy returns, with or without an error, when the hook's process has closed its end of the pipe
		// The signal kills the process group, with git and its children. Kill cannot fail for the own group, but the init
		// process of a PID namespace ignores the signal.
		_ = syscall.Kill(0, syscall.SIGKILL)
		os.Exit(1)
	}()
	return downloadToWorkingDir(context.Background(), request, reportWriter)
}

// downloader makes one download into the staging directory, the working directory of its process.
// It is large because all kinds of sources need the request and the parsed source.
type downloader struct {
	downloadRequest
	*parsedSource
	stagingRoot      *os.Root
	transferCounter  *transferCounter
	sharedHTTPClient *http.Client // client for several requests; nil means a new client for each file
}

func downloadToWorkingDir(ctx context.Context, request downloadRequest, reportWriter io.Writer) error {
	src, err := parseSource(request.Source, request.Options)
	if err != nil {
		return err
	}
	stage, err := os.OpenRoot(".")
	if err != nil {
		return err
	}
	defer stage.Close()
	if err := stage.Mkdir(scratchDirName, 0o700); err != nil {
		return err
	}
	d := &downloader{downloadRequest: request, parsedSource: src, stagingRoot: stage, transferCounter: new(transferCounter)}
	reportCtx, stopReports := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopReports()
	wg.Go(func() {
		d.transferCounter.writeProgressReports(reportCtx, reportWriter, d.updateReceivedRepositoryBytes)
	})
	timeout, setting, download := request.Limits.HTTPTimeout, "http_read_timeout", d.downloadAndUnpackFile
	switch src.sourceType {
	case "git":
		timeout, setting, download = request.Limits.GitTimeout, "git_timeout", d.downloadGit
	case "hg":
		timeout, setting, download = request.Limits.HgTimeout, "hg_timeout", d.downloadHg
	case "s3":
		timeout, setting, download = request.Limits.S3Timeout, "s3_timeout", d.downloadS3
	}
	ctx, cancel := withTimeout(ctx, timeout, setting)
	defer cancel()
	return download(ctx)
}

func withTimeout(ctx context.Context, d time.Duration, settingNameForError string) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("not done after %v: see %s in the client's artifact block", d, settingNameForError))
}

// downloadAndUnpackFile downloads a file, and unpacks it if it is an archive.
func (d *downloader) downloadAndUnpackFile(ctx context.Context) error {
	name, err := d.fileName()
	if err != nil {
		return err
	}
	if d.Step == stepFetch && d.hasChecksumFile() {
		if err := d.fetchAndStoreExpectedChecksum(ctx, name); err != nil {
			return err
		}
	}
	if d.Step != stepUnpack {
		if err := d.downloadToStagingFile(ctx, fetchedFileName); err != nil {
			return err
		}
	}
	if d.Step == stepFetch {
		return nil
	}
	format, err := findArchiveFormat(path.Base(d.url.Path), d.archiveOption)
	if err != nil {
		return err
	}
	if format == nil {
		return d.moveFetchedFileToResult(name)
	}
	if format.unpackEntries == nil {
		name = format.trimExtension(name)
	}
	d.transferCounter.isUnpacking.Store(true)
	if err := d.unpack(ctx, format, fetchedFileName, unpackedDirName); err != nil {
		return fmt.Errorf("unpack %s: %w", path.Base(d.url.Path), err)
	}
	return d.moveTreeOrSubpathToResult(unpackedDirName, name)
}

// moveFetchedFileToResult moves the downloaded file unchanged to the result.
func (d *downloader) moveFetchedFileToResult(nameInResult string) error {
	if d.subpath != "" {
		return fmt.Errorf("%q of %s is wanted, which is no archive", d.subpath, nameInResult)
	}
	return d.moveFileToResult(fetchedFileName, nameInResult)
}

// fetchAndStoreExpectedChecksum downloads the file of checksums and stores the expected checksum of
// the named file.
func (d *downloader) fetchAndStoreExpectedChecksum(ctx context.Context, fileName string) error {
	of, err := parseSource(strings.TrimPrefix(d.checksum, checksumFilePrefix), nil)
	if err != nil {
		return fmt.Errorf("file of checksums: %w", err)
	}
	other := &downloader{downloadRequest: d.downloadRequest, parsedSource: of, stagingRoot: d.stagingRoot, transferCounter: new(transferCounter)}
	other.Headers = nil // the headers are only for the server of the source
	if of.s3 != nil && d.s3 != nil {
		of.s3.copyCredentialsIfSameBucket(d.s3)
	}
	r, err := other.openSourceFile(ctx)
	if err != nil {
		return fmt.Errorf("file of checksums: %w", err)
	}
	defer r.Close()
	text, err := findChecksumForFile(io.LimitReader(r, 1<<20), fileName)
	if err != nil {
		return err
	}
	if _, err := parseChecksum(text); err != nil {
		return err // an invalid checksum is reported before the file is downloaded
	}
	return d.stagingRoot.WriteFile(checksumFileName, []byte(text), 0o600)
}

// downloadToStagingFile downloads the file of the source to a new file in the staging directory.
func (d *downloader) downloadToStagingFile(ctx context.Context, stagingName string) error {
	r, err := d.openSourceFile(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := d.stagingRoot.OpenFile(stagingName, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	w := io.MultiWriter(d.transferCounter, f)
	if limit := d.Limits.HTTPMaxBytes; limit > 0 {
		w = io.MultiWriter(&byteLimitChecker{remainingBytes: limit, newLimitError: func() error { return newFileTooLargeError(limit) }}, w)
	}
	if _, err := io.Copy(w, r); err != nil {
		return contextCauseOrRedactedError(ctx, err)
	}
	return f.Close()
}

// newFileTooLargeError describes a download of more than maxBytes bytes.
func newFileTooLargeError(maxBytes int64) error {
	return fmt.Errorf("the download is larger than %s: see http_max_size in the client's artifact block", formatSize(maxBytes))
}

// openSourceFile opens the file of the source for reading.
func (d *downloader) openSourceFile(ctx context.Context) (io.ReadCloser, error) {
	switch d.sourceType {
	case "http":
		return d.openHTTPFile(ctx)
	case "s3":
		if err := d.s3.setDefaultsFromEnv(d.Env); err != nil {
			return nil, err
		}
		return d.openHTTPFile(ctx)
	case "file":
		return d.openAllowedLocalFile()
	}
	return nil, unsupportedSchemeError(d.url.Scheme)
}

// openAllowedLocalFile opens a file of this machine, if the operator has listed it or a
// directory above it.
func (d *downloader) openAllowedLocalFile() (io.ReadCloser, error) {
	name := path.Clean(d.url.Path)
	if d.url.Host != "" || !path.IsAbs(name) {
		return nil, unsupportedSchemeError("file")
	}
	for _, p := range d.Limits.parseExtraPaths() {
		if !p.isReadable() || p.path != name && !strings.HasPrefix(name, strings.TrimSuffix(p.path, "/")+"/") {
			continue
		}
		f, err := openFileBelow(p.path, strings.TrimPrefix(name[len(p.path):], "/"))
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err != nil || !info.Mode().IsRegular() {
			f.Close()
			return nil, errors.Join(err, fmt.Errorf("%s is no regular file; a directory can be packed into an archive", name))
		}
		d.transferCounter.totalBytes.Store(info.Size())
		return f, nil
	}
	return nil, unsupportedSchemeError("file")
}

// openFileBelow opens the file relativePath below the directory allowedPath, or the file allowedPath
// itself if relativePath is "".
func openFileBelow(allowedPath, relativePath string) (*os.File, error) {
	const flags = os.O_RDONLY | syscall.O_NONBLOCK // without O_NONBLOCK, opening a FIFO would block
	if relativePath == "" {
		// Landlock forbids this process to open the directory of a listed file.
		f, err := os.OpenFile(allowedPath, flags|syscall.O_NOFOLLOW, 0)
		if errors.Is(err, syscall.ELOOP) {
			return nil, fmt.Errorf("%s is a symbolic link: use the path of its target, here and in filesystem_isolation_extra_paths", allowedPath)
		}
		return f, err
	}
	root, err := os.OpenRoot(allowedPath)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.OpenFile(relativePath, flags, 0)
}

// moveTreeOrSubpathToResult moves a directory tree, or the requested subpath of the tree, to the result. If
// the tree is a single file, singleFileName is its name in the result.
func (d *downloader) moveTreeOrSubpathToResult(tree, singleFileName string) error {
	if d.subpath != "" {
		part, err := d.resolveRequestedSubpath(tree)
		if err != nil {
			return err
		}
		tree, singleFileName = part, path.Base(part)
	}
	info, err := d.stagingRoot.Lstat(tree)
	if err != nil {
		return fmt.Errorf("there is no %q in it", d.subpath)
	}
	switch {
	case info.Mode().IsRegular():
		return d.moveFileToResult(tree, singleFileName)
	case !info.IsDir():
		return fmt.Errorf("%q is neither a file nor a directory", d.subpath)
	case d.Mode != "file":
		return d.stagingRoot.Rename(tree, resultFileName)
	}
	entries, err := fs.ReadDir(d.stagingRoot.FS(), tree)
	if err != nil {
		return err
	}
	if len(entries) != 1 || !entries[0].Type().IsRegular() {
		return errors.New("expected a single file")
	}
	return d.stagingRoot.Rename(path.Join(tree, entries[0].Name()), resultFileName)
}

// resolveRequestedSubpath returns the path of the requested subpath in a directory tree. The subpath can be a
// glob pattern.
func (d *downloader) resolveRequestedSubpath(tree string) (string, error) {
	part := path.Join(tree, d.subpath)
	if _, err := d.stagingRoot.Lstat(part); err == nil || !strings.ContainsAny(d.subpath, "*?[") {
		return part, nil
	}
	found, err := fs.Glob(d.stagingRoot.FS(), part)
	if err != nil {
		return "", fmt.Errorf("the part %q of the source: %w", d.subpath, err)
	}
	if len(found) > 1 {
		return "", fmt.Errorf("%q of the source is %d things in it, of which one is wanted", d.subpath, len(found))
	}
	return append(found, part)[0], nil
}

// moveFileToResult moves one file to the result: to the result itself in mode "file", else to
// nameInResultDir in the result directory.
func (d *downloader) moveFileToResult(stagingPath, nameInResultDir string) error {
	switch d.Mode {
	case "file":
		return d.stagingRoot.Rename(stagingPath, resultFileName)
	case "dir":
		return fmt.Errorf("%s is one file, and mode is dir: use mode any or file", nameInResultDir)
	}
	if err := d.stagingRoot.Mkdir(resultFileName, 0o755); err != nil {
		return err
	}
	return d.stagingRoot.Rename(stagingPath, path.Join(resultFileName, nameInResultDir))
}

// byteLimitChecker is a writer that fails with newLimitError when its limit is exceeded.
type byteLimitChecker struct {
	remainingBytes int64
	newLimitError  func() error
}

func (l *byteLimitChecker) Write(p []byte) (int, error) {
	if l.remainingBytes -= int64(len(p)); l.remainingBytes < 0 {
		return 0, l.newLimitError()
	}
	return len(p), nil
}

// contextCauseOrRedactedError returns nil if err is nil, the cause of ctx if ctx has ended, and otherwise
// err without the URL that it may contain.
func contextCauseOrRedactedError(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return removeURLFromError(err)
}

// removeURLFromError removes the URL, which may have a password, from an error.
func removeURLFromError(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// formatSize formats a number of bytes for display.
func formatSize(byteCount int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for ; byteCount >= 10000 && i < len(units)-1; i++ {
		byteCount /= 1000
	}
	return fmt.Sprintf("%d %s", byteCount, units[i])
}
