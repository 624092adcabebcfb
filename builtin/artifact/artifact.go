package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/sdk"
)

// Name is what the plugin is called.
const Name = "artifact"

// concurrent is how many downloads of one task there are at a time.
const concurrent = 3

// Hook downloads the artifacts of tasks. With Args this program, started again,
// makes one download: it calls Download.
type Hook struct {
	Args []string

	host    sdk.Host
	placing sync.Mutex // held by the download that comes to its destination
}

var (
	_ sdk.Plugin       = (*Hook)(nil)
	_ sdk.HostSetter   = (*Hook)(nil)
	_ sdk.TaskPrestart = (*Hook)(nil)
)

// Info says what the hook is.
func (h *Hook) Info() sdk.Info {
	return sdk.Info{
		Name:    Name,
		Version: "0.1.0",
		AttachmentSchema: sdk.Object(map[string]*sdk.Spec{
			"artifacts": sdk.Attr("artifacts", "any", true),
			"limits":    sdk.Attr("limits", "any", false),
		}),
		// Each download has a limit of its own.
		Timeouts: map[sdk.Point]time.Duration{sdk.MomentPrestart: 7 * 24 * time.Hour},
	}
}

// SetHost keeps the host, which fills in references and shows events.
func (h *Hook) SetHost(host sdk.Host, _ sdk.Node) { h.host = host }

// attachment is what the runner hands over.
type attachment struct {
	Artifacts []artifact `json:"artifacts"`
	Limits    Limits     `json:"limits"`
}

// artifact is one block, as the API shows it.
type artifact struct {
	Source      string            `json:"GetterSource"`
	Options     map[string]string `json:"GetterOptions"`
	Headers     map[string]string `json:"GetterHeaders"`
	Mode        string            `json:"GetterMode"`
	Insecure    bool              `json:"GetterInsecure"`
	Destination string            `json:"RelativeDest"`
	Chown       bool              `json:"Chown"`
}

// key is the same as long as the block is.
func (a *artifact) key() string {
	text, _ := json.Marshal(a) // strings and booleans only
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Prestart downloads what is not there yet. State has for each artifact that is
// there one of its paths. An error can be tried again: the last one is told, and
// nothing that has succeeded is downloaded a second time.
func (h *Hook) Prestart(ctx context.Context, req sdk.TaskPrestartRequest) (sdk.TaskPrestartResponse, error) {
	at := attachment{Limits: defaults()}
	if err := json.Unmarshal(req.Attachment, &at); err != nil {
		return sdk.TaskPrestartResponse{}, fmt.Errorf("read what to download: %w", err)
	}
	if req.Running {
		return sdk.TaskPrestartResponse{State: req.PreviousState}, nil
	}
	answer := sdk.TaskPrestartResponse{State: map[string]string{}, Done: true}
	missing := map[string]artifact{} // by key: of two blocks that are the same one is enough
	for _, a := range at.Artifacts {
		if path, ok := req.PreviousState[a.key()]; ok && exists(path) {
			answer.State[a.key()] = path
		} else {
			missing[a.key()] = a
		}
	}
	if len(missing) > 0 {
		h.tell(ctx, &req, "Client is downloading artifacts")
	}

	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		last error
		free = make(chan struct{}, concurrent)
	)
	for key, a := range missing {
		wg.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			path, err := h.download(ctx, &req, a, at.Limits)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				last = err
				return
			}
			answer.State[key] = path
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return answer, context.Cause(ctx)
	}
	if last != nil {
		return answer, sdk.Recoverable(last)
	}
	for _, path := range answer.State {
		// What lies in memory is gone after a reboot, and must be fetched again.
		if within(path, req.Dir.SecretsDir) || within(path, req.Dir.PrivateDir) {
			answer.Done = false
		}
	}
	return answer, nil
}

// tell adds an event to the task. A download does not fail for want of one.
func (h *Hook) tell(ctx context.Context, req *sdk.TaskPrestartRequest, message string) {
	_ = h.host.EmitEvent(ctx, req.Scope(), sdk.Event{Type: "Downloading Artifacts", Message: message})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// download gets one artifact, and returns a path at which it is.
func (h *Hook) download(ctx context.Context, req *sdk.TaskPrestartRequest, a artifact, limits Limits) (string, error) {
	path, err := h.tryDownload(ctx, req, a, limits)
	if err != nil {
		return "", fmt.Errorf("failed to download artifact %q: %w", withoutSecret(a.Source), err)
	}
	return path, nil
}

func (h *Hook) tryDownload(ctx context.Context, req *sdk.TaskPrestartRequest, a artifact, limits Limits) (string, error) {
	a, err := h.interpolate(ctx, req, a)
	if err != nil {
		return "", err
	}
	to, err := findDestination(req.Dir, a.Destination)
	if err != nil {
		return "", err
	}
	owner, err := ownerOf(a.Chown, req.Task.User)
	if err != nil {
		return "", err
	}
	p, err := newInstaller(to, req.Task.Name, a.key(), owner)
	if err != nil {
		return "", err
	}
	defer p.close()
	o := request{Source: a.Source, Options: a.Options, Headers: a.Headers, Mode: a.Mode, Insecure: a.Insecure, Limits: limits}
	if err := h.fetch(ctx, o, p); err != nil {
		return "", err
	}
	h.placing.Lock()
	path, err := p.place()
	h.placing.Unlock()
	if err != nil {
		return "", err
	}
	if note := p.note(); note != "" {
		hclog.Default().Warn("changed what was downloaded", "task", req.Task.Name, "alloc_id", req.Alloc.ID, "change", note)
		h.tell(ctx, req, note)
	}
	return path, nil
}

// fetch has an artifact downloaded into the stage. A checksum is compared here, and
// what is unpacked is the file that was compared: the process that has talked to a
// server has no part in that.
func (h *Hook) fetch(ctx context.Context, o request, p *installer) error {
	src, err := parseSource(o.Source, o.Options)
	if err != nil {
		return err
	}
	if src.kind == "git" || src.checksum == "" {
		return run(ctx, h.Args, o, p.dir)
	}
	name, err := src.name()
	if err != nil {
		return err
	}
	format, err := findFormat(path.Base(src.url.Path), src.archive)
	if err != nil {
		return err
	}
	if _, err := parseChecksum(src.checksum); err != nil && !src.listed() {
		return err
	}
	o.Step = stepFetch
	if err := run(ctx, h.Args, o, p.dir); err != nil {
		return err
	}
	if err := p.verify(ctx, name, src.checksum); err != nil {
		return err
	}
	if format == nil {
		d := &downloader{request: o, source: src, stage: p.stage}
		return d.deliverFile(name)
	}
	o.Step = stepUnpack
	return run(ctx, h.Args, o, p.dir)
}

// interpolate fills in the references of all that may have some. The directories
// of a destination are those of this machine, whatever the task sees of them.
func (h *Hook) interpolate(ctx context.Context, req *sdk.TaskPrestartRequest, a artifact) (artifact, error) {
	var failed error
	fill := func(text string) string {
		if !strings.Contains(text, "${") || failed != nil {
			return text
		}
		text, failed = h.host.Interpolate(ctx, req.Scope(), text)
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
	if failed != nil {
		return a, fmt.Errorf("fill in the references: %w", failed)
	}
	return a, nil
}

// withoutSecret is the source as people may read it: without a password, without
// the name of a user where that may be a key, and without a query, in which
// servers like to have keys.
func withoutSecret(source string) string {
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
		at = strings.LastIndex(rest, "@") // a password with a slash in it
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
