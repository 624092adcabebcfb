package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// Name is the name of the plugin.
const Name = "artifact"

// maxConcurrentDownloads limits the concurrent downloads of a task.
const maxConcurrentDownloads = 3

// Hook downloads the artifacts of tasks. Each download is a process of this program, started with
// DownloadProcessArgs, for which the program must call DownloadProcessMain.
type Hook struct {
	DownloadProcessArgs []string

	host      hook.Host
	installMu sync.Mutex // installMu is held while a download moves its result to the destination
}

var (
	_ sdk.Hook          = (*Hook)(nil)
	_ sdk.HostSetter    = (*Hook)(nil)
	_ hook.TaskPrestart = (*Hook)(nil)
)

// Info describes the hook.
func (h *Hook) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name:    Name,
		Version: "0.1.0",
		AttachmentSchema: hclspec.Object(map[string]*hclspec.Spec{
			"artifacts": hclspec.Attr("artifacts", "any", true),
			"limits":    hclspec.Attr("limits", "any", false),
		}),
		// The limit is never reached in practice, because each download has a timeout of its own.
		Timeouts: map[hook.Point]time.Duration{hook.Prestart: 7 * 24 * time.Hour},
	}
}

// SetHost stores the host, which interpolates references and emits task events for the hook.
func (h *Hook) SetHost(host hook.Host, _ hook.Node) { h.host = host }

// attachmentConfig has the artifact blocks of a task and the operator's limits.
// The task runner attaches the hook with it.
type attachmentConfig struct {
	Artifacts []artifact `json:"artifacts"`
	Limits    Limits     `json:"limits"`
}

// artifact is an artifact block in the API's JSON.
type artifact struct {
	Source      string            `json:"GetterSource"`
	Options     map[string]string `json:"GetterOptions"`
	Headers     map[string]string `json:"GetterHeaders"`
	Mode        string            `json:"GetterMode"`
	Insecure    bool              `json:"GetterInsecure"`
	Destination string            `json:"RelativeDest"`
	Chown       bool              `json:"Chown"`
}

// blockHash returns a hash of the block, by which the hook's state identifies the artifact.
func (a *artifact) blockHash() string {
	text, _ := json.Marshal(a) // cannot fail: the fields are strings, booleans and maps of strings
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Prestart downloads the artifacts that are missing. The state in its response has a path of each
// downloaded artifact, so that a later call does not download the artifact again. It returns the
// last error, which is recoverable.
func (h *Hook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	at := attachmentConfig{Limits: defaultLimits()}
	if err := json.Unmarshal(req.AttachmentJSON, &at); err != nil {
		return hook.TaskPrestartResponse{}, fmt.Errorf("read what to download: %w", err)
	}
	if req.Running {
		return hook.TaskPrestartResponse{State: req.PreviousState}, nil
	}
	answer := hook.TaskPrestartResponse{State: map[string]string{}, Done: true}
	missing := map[string]artifact{} // hash of the block -> block: equal blocks need one download
	for _, a := range at.Artifacts {
		if path, ok := req.PreviousState[a.blockHash()]; ok && pathExists(path) {
			answer.State[a.blockHash()] = path
		} else {
			missing[a.blockHash()] = a
		}
	}
	if len(missing) > 0 {
		h.emitDownloadEvent(ctx, &req, hook.Event{Message: "Client is downloading artifacts"})
	}

	var (
		wg            sync.WaitGroup
		mu            sync.Mutex
		lastErr       error
		downloadSlots = make(chan struct{}, maxConcurrentDownloads)
	)
	for key, a := range missing {
		wg.Go(func() {
			downloadSlots <- struct{}{}
			defer func() { <-downloadSlots }()
			path, err := h.downloadArtifact(ctx, &req, a, at.Limits)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				lastErr = err
				return
			}
			answer.State[key] = path
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return answer, context.Cause(ctx)
	}
	if lastErr != nil {
		return answer, sdk.Recoverable(lastErr)
	}
	for _, path := range answer.State {
		// Directories in memory (tmpfs) are empty after a reboot, so their artifacts
		// are downloaded again.
		if isWithinDir(path, req.Dir.SecretsDir) || isWithinDir(path, req.Dir.PrivateDir) {
			answer.Done = false
		}
	}
	return answer, nil
}

const eventDownloading = "Downloading Artifacts"

// emitDownloadEvent emits a task event of type eventDownloading. It drops errors, because events only inform the
// user: the download continues without them.
func (h *Hook) emitDownloadEvent(ctx context.Context, req *hook.TaskPrestartRequest, e hook.Event) {
	e.Type = eventDownloading
	_ = h.host.EmitEvent(ctx, req.Scope(), e)
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// downloadArtifact downloads one artifact, installs it, and returns a path of the
// installed files.
func (h *Hook) downloadArtifact(ctx context.Context, req *hook.TaskPrestartRequest, a artifact, limits Limits) (installedPath string, err error) {
	installedPath, err = h.downloadAndInstall(ctx, req, a, limits)
	if err != nil {
		return "", fmt.Errorf("failed to download artifact %q: %w", redactSource(a.Source), err)
	}
	return installedPath, nil
}

func (h *Hook) downloadAndInstall(ctx context.Context, req *hook.TaskPrestartRequest, a artifact, limits Limits) (installedPath string, err error) {
	progress := h.newProgressTracker(req, a)
	finish := progress.startProgressEvents(ctx)
	defer func() { finish(err) }()
	if a, err = h.interpolateArtifact(ctx, req, a); err != nil {
		return "", err
	}
	to, err := parseDestination(req.Dir, a.Destination)
	if err != nil {
		return "", err
	}
	owner, err := lookupFileOwner(a.Chown, req.Task.User)
	if err != nil {
		return "", err
	}
	inst, err := newInstallerWithStagingDir(to, req.Task.Name, a.blockHash(), owner)
	if err != nil {
		return "", err
	}
	defer inst.closeAndRemoveStagingDir()
	request := downloadRequest{Source: a.Source, Options: a.Options, Headers: a.Headers, Mode: a.Mode, Insecure: a.Insecure, Limits: limits}
	if err := h.downloadVerifyAndUnpack(ctx, request, inst, progress); err != nil {
		return "", err
	}
	h.installMu.Lock()
	installedPath, err = inst.install()
	h.installMu.Unlock()
	if err != nil {
		return "", err
	}
	if note := inst.removedModeBitsMessage(); note != "" {
		hclog.Default().Warn("changed what was downloaded", "task", req.Task.Name, "alloc_id", req.Alloc.ID, "change", note)
		h.emitDownloadEvent(ctx, req, hook.Event{Message: note})
	}
	return installedPath, nil
}

// downloadVerifyAndUnpack downloads an artifact into the staging directory. The hook itself
// compares a checksum, and another process unpacks the verified file, so that a server
// that compromises the download process can affect neither.
func (h *Hook) downloadVerifyAndUnpack(ctx context.Context, request downloadRequest, inst *installer, reportWriter io.Writer) error {
	src, err := parseSource(request.Source, request.Options)
	if err != nil {
		return err
	}
	if src.isRepository() || src.checksum == "" {
		return runDownloadProcess(ctx, h.DownloadProcessArgs, request, inst.stagingDir, reportWriter)
	}
	name, err := src.fileName()
	if err != nil {
		return err
	}
	format, err := findArchiveFormat(path.Base(src.url.Path), src.archiveOption)
	if err != nil {
		return err
	}
	if _, err := parseChecksum(src.checksum); err != nil && !src.hasChecksumFile() {
		return err
	}
	request.Step = stepFetch
	if err := runDownloadProcess(ctx, h.DownloadProcessArgs, request, inst.stagingDir, reportWriter); err != nil {
		return err
	}
	if err := inst.verifyChecksumAndRemoveOthers(ctx, name, src.checksum); err != nil {
		return err
	}
	if format == nil {
		d := &downloader{downloadRequest: request, parsedSource: src, stagingRoot: inst.stagingRoot}
		return d.moveFetchedFileToResult(name)
	}
	request.Step = stepUnpack
	return runDownloadProcess(ctx, h.DownloadProcessArgs, request, inst.stagingDir, reportWriter)
}

// interpolateArtifact resolves the references in all fields that may have them. In a destination,
// the variables of the task's directories become the paths of the directories on the host.
func (h *Hook) interpolateArtifact(ctx context.Context, req *hook.TaskPrestartRequest, a artifact) (artifact, error) {
	var interpolateErr error
	fill := func(text string) string {
		if !strings.Contains(text, "${") || interpolateErr != nil {
			return text
		}
		text, interpolateErr = h.host.Interpolate(ctx, req.Scope(), text)
		return text
	}
	fillAll := func(texts map[string]string) map[string]string {
		texts = maps.Clone(texts)
		for k, v := range texts {
			texts[k] = fill(v)
		}
		return texts
	}
	a.Source = fill(a.Source)
	a.Options = fillAll(a.Options)
	a.Headers = fillAll(a.Headers)
	a.Destination = fill(strings.NewReplacer(
		"${NOMAD_ALLOC_DIR}", req.Dir.SharedAllocDir,
		"${NOMAD_TASK_DIR}", req.Dir.LocalDir,
		"${NOMAD_SECRETS_DIR}", req.Dir.SecretsDir,
	).Replace(a.Destination))
	if interpolateErr != nil {
		return a, fmt.Errorf("fill in the references: %w", interpolateErr)
	}
	return a, nil
}

// redactSource returns the source for display: without a password, without a
// user name that may be a key, and without the query, which often has keys.
func redactSource(source string) string {
	source, _, cut := strings.Cut(source, "?")
	if cut {
		source += "?…"
	}
	scheme, rest, ok := strings.Cut(source, "://")
	if !ok {
		return source
	}
	host, _, _ := strings.Cut(rest, "/")
	at := strings.LastIndex(host, "@")
	if _, port, ok := strings.Cut(host, ":"); at < 0 && ok && strings.Trim(port, "0123456789") != "" {
		at = strings.LastIndex(rest, "@") // the password has a slash, so that host ends inside of the password
	}
	if at < 0 {
		return source
	}
	user, _, hasPassword := strings.Cut(rest[:at], ":")
	switch {
	case hasPassword:
		user += ":xxxxx"
	case strings.HasSuffix(scheme, "http"), strings.HasSuffix(scheme, "https"):
		user = "xxxxx"
	}
	return scheme + "://" + user + rest[at:]
}
