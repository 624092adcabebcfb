package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/hashicorp/go-hclog"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// imageStore brings images to the engine, and removes an image some time after its last
// container. Concurrent starts share one pull.
type imageStore struct {
	mu         sync.Mutex
	engine     engineRef
	config     *pluginConfig
	pulls      map[string]*pull
	containers map[string]map[string]bool // by id of the image: the starts that use it
	removals   map[string]*time.Timer     // by id of the image
}

// pull is a running pull of one image.
type pull struct {
	waiters int
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when err is set
	err     error
}

func newImageStore() *imageStore {
	return &imageStore{pulls: map[string]*pull{}, containers: map[string]map[string]bool{}, removals: map[string]*time.Timer{}}
}

func (s *imageStore) configure(engine *client.Client, config *pluginConfig) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine, s.config = newEngineRef(engine), config
}

// client returns the client of the latest configuration.
func (s *imageStore) client() *client.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.client()
}

func (s *imageStore) settings() *pluginConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config
}

// imageRef is the name of an image in a job.
type imageRef struct {
	name  string
	named reference.Named // nil for an image id
}

// parseImage parses a name, which can have the prefix https://, or an image id.
func parseImage(name string) (imageRef, error) {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
	if id, ok := strings.CutPrefix(name, "sha256:"); ok {
		return imageRef{name: "sha256:" + id}, nil
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return imageRef{}, fmt.Errorf("image %q: %w", name, err)
	}
	named = reference.TagNameOnly(named)
	return imageRef{name: reference.FamiliarString(named), named: named}, nil
}

// isMovable reports whether the registry is asked for a newer image each time.
func (r imageRef) isMovable() bool {
	if _, ok := r.named.(reference.Digested); ok || r.named == nil {
		return false
	}
	tagged, ok := r.named.(reference.Tagged)
	return ok && tagged.Tag() == "latest"
}

// acquire returns the id of the task's image, which is then in use by the start.
func (s *imageStore) acquire(ctx context.Context, t *taskConfig, start *sdk.StartRequest) (string, error) {
	ref, err := parseImage(t.Image)
	if err != nil {
		return "", err
	}
	if t.Load != "" {
		if err := s.load(ctx, t, start); err != nil {
			return "", err
		}
	} else if t.ForcePull || ref.isMovable() {
		if err := s.pullForTask(ctx, ref, t, start); err != nil {
			return "", err
		}
	}
	id, err := s.use(ctx, ref, start.ID)
	if cerrdefs.IsNotFound(err) && t.Load == "" && ref.named != nil {
		if err := s.pullForTask(ctx, ref, t, start); err != nil {
			return "", err
		}
		id, err = s.use(ctx, ref, start.ID)
	}
	switch {
	case cerrdefs.IsNotFound(err) && t.Load != "":
		return "", fmt.Errorf("the archive %s has no image %q; image must be a name in the archive", t.Load, ref.name)
	case cerrdefs.IsNotFound(err):
		return "", fmt.Errorf("the engine has no image %s, and an image id cannot be pulled", ref.name)
	case err != nil:
		return "", engineError(fmt.Errorf("inspect the image %s: %w", ref.name, err))
	}
	return id, nil
}

// infraImage returns the id of the image of the containers that hold the networks of groups.
// It pulls the configured image under the same conditions as the image of a task. Without one
// it makes the pause image. The image is not removed: the next group of this node needs it.
func (s *imageStore) infraImage(ctx context.Context, config *pluginConfig) (string, error) {
	name := config.InfraImage
	provide := func(imageRef) error { return importPauseImage(ctx, s.client()) }
	if name == "" {
		name = pauseImage
	} else {
		provide = func(ref imageRef) error {
			auth, err := registryAuth(ctx, ref.named, nil, config.Auth)
			if err != nil {
				return fmt.Errorf("credentials for infra_image %s: %w", ref.name, err)
			}
			return s.pull(ctx, ref, auth, pullLimit{"infra_image_pull_timeout", config.infraImagePullTimeout})
		}
	}
	ref, err := parseImage(name)
	if err != nil {
		return "", err
	}
	if ref.isMovable() {
		if err := provide(ref); err != nil {
			return "", err
		}
	}
	image, err := s.client().ImageInspect(ctx, ref.name)
	if cerrdefs.IsNotFound(err) && ref.named != nil {
		if err := provide(ref); err != nil {
			return "", err
		}
		image, err = s.client().ImageInspect(ctx, ref.name)
	}
	if err != nil {
		return "", engineError(fmt.Errorf("inspect the image %s: %w", ref.name, err))
	}
	return image.ID, nil
}

// use marks an image as used by a start.
func (s *imageStore) use(ctx context.Context, ref imageRef, startID string) (string, error) {
	image, err := s.client().ImageInspect(ctx, ref.name)
	if err != nil {
		return "", err
	}
	s.addContainer(image.ID, startID)
	return image.ID, nil
}

func (s *imageStore) addContainer(imageID, startID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if timer := s.removals[imageID]; timer != nil {
		timer.Stop()
		delete(s.removals, imageID)
	}
	if s.containers[imageID] == nil {
		s.containers[imageID] = map[string]bool{}
	}
	s.containers[imageID][startID] = true
}

// release ends the use of an image by a start. The image is removed after gc.image_delay
// unless another start uses it by then. The logger gets the reason if the removal fails.
func (s *imageStore) release(imageID, startID string, logger hclog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.containers[imageID][startID] {
		return
	}
	delete(s.containers[imageID], startID)
	if len(s.containers[imageID]) > 0 {
		return
	}
	delete(s.containers, imageID)
	if s.config.GC.Image {
		s.removals[imageID] = time.AfterFunc(s.config.GC.imageDelay, func() { s.remove(imageID, logger) })
	}
}

func (s *imageStore) remove(imageID string, logger hclog.Logger) {
	s.mu.Lock()
	_, due := s.removals[imageID]
	delete(s.removals, imageID)
	used := len(s.containers[imageID]) > 0
	engine := s.engine.client()
	s.mu.Unlock()
	if !due || used {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := engine.ImageRemove(ctx, imageID, client.ImageRemoveOptions{PruneChildren: true})
	switch {
	case err == nil, cerrdefs.IsNotFound(err):
	case cerrdefs.IsConflict(err):
		// The image has several names, or a container of another owner uses it.
		logger.Debug("the image of ended tasks remains", "image", imageID, "error", err)
	default:
		logger.Warn("the image of ended tasks is not removed", "image", imageID, "error", err)
	}
}

// load loads an archive of the task's local directory.
func (s *imageStore) load(ctx context.Context, t *taskConfig, start *sdk.StartRequest) error {
	archive, err := openArchive(filepath.Join(start.TaskDir(), "local"), t.Load)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer archive.Close()
	limit := pullLimit{"image_pull_timeout", cmp.Or(t.imagePullTimeout, s.settings().imagePullTimeout)}
	ctx, cancel := context.WithTimeoutCause(ctx, limit.timeout, fmt.Errorf("not complete after %s, %v", limit.option, limit.timeout))
	defer cancel()
	err = func() error {
		result, err := s.client().ImageLoad(ctx, archive, client.ImageLoadWithQuiet(true))
		if err != nil {
			return engineError(err)
		}
		defer result.Close()
		return readMessages(result, func(string) {})
	}()
	if ctx.Err() != nil {
		err = sdk.Recoverable(context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("load %s: %w", t.Load, err)
	}
	return nil
}

// archiveReader reads as much of an archive as it had when it was opened: a task can append to it for ever.
type archiveReader struct {
	io.Reader
	io.Closer
}

// openArchive opens a file of a directory in which tasks can write. A file with holes can be larger than its disk.
func openArchive(dir, name string) (io.ReadCloser, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	resolved, err := filepath.EvalSymlinks(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	if !isBelow(resolved, dir) {
		return nil, fmt.Errorf("the archive %s must be in the task's local directory", resolved)
	}
	f, err := safepath.OpenFile(resolved)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	var disk unix.Statfs_t
	if err == nil {
		err = unix.Fstatfs(int(f.Fd()), &disk)
	}
	if size := int64(disk.Blocks) * disk.Bsize; err == nil && info.Size() > size {
		err = fmt.Errorf("the archive %s has %d bytes, and its disk %d", resolved, info.Size(), size)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return archiveReader{io.LimitReader(f, info.Size()), f}, nil
}

// errPullUnused is the cause that ends a pull for which no start waits.
var errPullUnused = errors.New("no task waits for the image")

// pullForTask pulls the image of a task.
func (s *imageStore) pullForTask(ctx context.Context, ref imageRef, t *taskConfig, start *sdk.StartRequest) error {
	if ref.named == nil {
		return nil // only a name can be pulled
	}
	auth, err := registryAuth(ctx, ref.named, t.Auth, s.settings().Auth)
	if err != nil {
		if !t.AuthSoftFail {
			return fmt.Errorf("credentials for the image %s: %w", ref.name, err)
		}
		start.Event(fmt.Sprintf("Pulling %s without credentials: %v", ref.name, err), nil)
	}
	start.Event("Downloading image", map[string]string{"image": ref.name})
	return s.pull(ctx, ref, auth, pullLimit{"image_pull_timeout", cmp.Or(t.imagePullTimeout, s.settings().imagePullTimeout)})
}

// pullLimit is an option that limits how long a caller waits for a pull.
type pullLimit struct {
	option  string
	timeout time.Duration
}

// pull pulls an image, or waits for a pull of the same image with the same credentials that
// is running. It returns at the limit at the latest; the pull ends with its last waiter.
func (s *imageStore) pull(ctx context.Context, ref imageRef, auth string, limit pullLimit) (err error) {
	key := ref.name + "\x00" + auth
	s.mu.Lock()
	p := s.pulls[key]
	if p == nil {
		pullCtx, cancel := context.WithCancelCause(context.Background())
		p = &pull{cancel: cancel, done: make(chan struct{})}
		s.pulls[key] = p
		go func() {
			p.err = s.runPull(pullCtx, ref, auth)
			s.mu.Lock()
			if s.pulls[key] == p {
				delete(s.pulls, key)
			}
			s.mu.Unlock()
			cancel(nil)
			close(p.done)
		}()
	}
	p.waiters++
	s.mu.Unlock()

	timer := time.NewTimer(limit.timeout)
	defer timer.Stop()
	select {
	case <-p.done:
		err = p.err
	case <-timer.C:
		err = sdk.Recoverable(fmt.Errorf("pull %s: not complete after %s, %v", ref.name, limit.option, limit.timeout))
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.waiters--; p.waiters == 0 {
		if s.pulls[key] == p {
			delete(s.pulls, key) // a start that comes now begins a new pull
		}
		p.cancel(errPullUnused)
	}
	return err
}

// runPull pulls an image until it is complete, or no progress was made for
// pull_activity_timeout.
func (s *imageStore) runPull(ctx context.Context, ref imageRef, auth string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := s.settings().pullActivityTimeout
	watchdog := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no progress for %v (pull_activity_timeout)", limit)) })
	defer watchdog.Stop()
	err := func() error {
		response, err := s.client().ImagePull(ctx, ref.name, client.ImagePullOptions{RegistryAuth: auth})
		if err != nil {
			return err
		}
		defer response.Close()
		return readMessages(response, func(string) { watchdog.Reset(limit) })
	}()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	err = fmt.Errorf("pull %s: %w", ref.name, err)
	if isMissingImage(err) {
		return err
	}
	return sdk.Recoverable(err)
}

// isMissingImage reports whether a registry has answered that it has no such image: a
// retry would get the same answer.
func isMissingImage(err error) bool {
	text := err.Error()
	return cerrdefs.IsNotFound(err) || strings.Contains(text, "not found") || strings.Contains(text, "manifest unknown")
}
