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

// imageStore pulls and loads images into the engine, and removes an image some time after the last
// task that uses it has been destroyed. Concurrent starts share one pull.
type imageStore struct {
	mu                     sync.Mutex
	engine                 untypedEngineClient
	config                 *pluginConfig
	pullsByImageAndAuth    map[string]*imagePull
	startIDsByImageID      map[string]map[string]bool // image ID -> IDs of the starts that use the image
	removalTimersByImageID map[string]*time.Timer     // image ID -> timer that removes the unused image
}

// imagePull is a running pull of one image, for which starts wait.
type imagePull struct {
	waiterCount int
	cancel      context.CancelCauseFunc
	done        chan struct{} // closed when err is set
	err         error
}

func newImageStore() *imageStore {
	return &imageStore{pullsByImageAndAuth: map[string]*imagePull{}, startIDsByImageID: map[string]map[string]bool{}, removalTimersByImageID: map[string]*time.Timer{}}
}

func (s *imageStore) setEngineAndConfig(engine *client.Client, config *pluginConfig) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine, s.config = newUntypedEngineClient(engine), config
}

// client returns the client of the latest configuration.
func (s *imageStore) client() *client.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.client()
}

func (s *imageStore) currentConfig() *pluginConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config
}

// imageRef is the name of an image in a job.
type imageRef struct {
	name     string
	namedRef reference.Named // nil if name is an image id
}

// parseImageRef parses a name, which can have the prefix https://, or an image id.
func parseImageRef(name string) (imageRef, error) {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
	if id, ok := strings.CutPrefix(name, "sha256:"); ok {
		return imageRef{name: "sha256:" + id}, nil
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return imageRef{}, fmt.Errorf("image %q: %w", name, err)
	}
	named = reference.TagNameOnly(named)
	return imageRef{name: reference.FamiliarString(named), namedRef: named}, nil
}

// hasLatestTag reports whether the tag is "latest". For such a name, each start pulls the image.
func (r imageRef) hasLatestTag() bool {
	if _, ok := r.namedRef.(reference.Digested); ok || r.namedRef == nil {
		return false
	}
	tagged, ok := r.namedRef.(reference.Tagged)
	return ok && tagged.Tag() == "latest"
}

// acquireImageForStart pulls or loads the task's image if necessary, marks it as used by the start, and returns
// its id.
func (s *imageStore) acquireImageForStart(ctx context.Context, t *taskConfig, start *sdk.StartRequest) (imageID string, err error) {
	ref, err := parseImageRef(t.Image)
	if err != nil {
		return "", err
	}
	if t.Load != "" {
		if err := s.loadImageArchive(ctx, t, start); err != nil {
			return "", err
		}
	} else if t.ForcePull || ref.hasLatestTag() {
		if err := s.pullTaskImage(ctx, ref, t, start); err != nil {
			return "", err
		}
	}
	imageID, err = s.inspectImageAndMarkUsed(ctx, ref, start.ID)
	if cerrdefs.IsNotFound(err) && t.Load == "" && ref.namedRef != nil {
		if err := s.pullTaskImage(ctx, ref, t, start); err != nil {
			return "", err
		}
		imageID, err = s.inspectImageAndMarkUsed(ctx, ref, start.ID)
	}
	switch {
	case cerrdefs.IsNotFound(err) && t.Load != "":
		return "", fmt.Errorf("the archive %s has no image %q; image must be a name in the archive", t.Load, ref.name)
	case cerrdefs.IsNotFound(err):
		return "", fmt.Errorf("the engine has no image %s, and an image id cannot be pulled", ref.name)
	case err != nil:
		return "", markRecoverableUnlessRefused(fmt.Errorf("inspect the image %s: %w", ref.name, err))
	}
	return imageID, nil
}

// pullOrMakeInfraImage returns the id of the image of the containers that hold the networks of groups. It
// pulls the configured image under the same conditions as the image of a task. If no image is
// configured, it makes the pause image. The image is not removed, because the next group of this
// node needs the image too.
func (s *imageStore) pullOrMakeInfraImage(ctx context.Context, config *pluginConfig) (imageID string, err error) {
	name := config.InfraImage
	provide := func(imageRef) error { return importPauseImage(ctx, s.client()) }
	if name == "" {
		name = pauseImage
	} else {
		provide = func(ref imageRef) error {
			auth, err := registryAuthHeader(ctx, ref.namedRef, nil, config.Auth)
			if err != nil {
				return fmt.Errorf("credentials for infra_image %s: %w", ref.name, err)
			}
			return s.pullOrJoin(ctx, ref, auth, pullLimit{"infra_image_pull_timeout", config.infraImagePullTimeout})
		}
	}
	ref, err := parseImageRef(name)
	if err != nil {
		return "", err
	}
	if ref.hasLatestTag() {
		if err := provide(ref); err != nil {
			return "", err
		}
	}
	image, err := s.client().ImageInspect(ctx, ref.name)
	if cerrdefs.IsNotFound(err) && ref.namedRef != nil {
		if err := provide(ref); err != nil {
			return "", err
		}
		image, err = s.client().ImageInspect(ctx, ref.name)
	}
	if err != nil {
		return "", markRecoverableUnlessRefused(fmt.Errorf("inspect the image %s: %w", ref.name, err))
	}
	return image.ID, nil
}

// inspectImageAndMarkUsed marks an image of the engine as used by a start, and returns the id of the image.
func (s *imageStore) inspectImageAndMarkUsed(ctx context.Context, ref imageRef, startID string) (imageID string, err error) {
	image, err := s.client().ImageInspect(ctx, ref.name)
	if err != nil {
		return "", err
	}
	s.markImageUsedByStart(image.ID, startID)
	return image.ID, nil
}

func (s *imageStore) markImageUsedByStart(imageID, startID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if timer := s.removalTimersByImageID[imageID]; timer != nil {
		timer.Stop()
		delete(s.removalTimersByImageID, imageID)
	}
	if s.startIDsByImageID[imageID] == nil {
		s.startIDsByImageID[imageID] = map[string]bool{}
	}
	s.startIDsByImageID[imageID][startID] = true
}

// releaseImageOfStart ends the use of an image by a start. The image is removed after gc.image_delay unless
// another start uses the image by then. The logger gets the error if the removal fails.
func (s *imageStore) releaseImageOfStart(imageID, startID string, logger hclog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.startIDsByImageID[imageID][startID] {
		return
	}
	delete(s.startIDsByImageID[imageID], startID)
	if len(s.startIDsByImageID[imageID]) > 0 {
		return
	}
	delete(s.startIDsByImageID, imageID)
	if s.config.GC.RemoveUnusedImages {
		s.removalTimersByImageID[imageID] = time.AfterFunc(s.config.GC.imageRemovalDelay, func() { s.removeImageIfUnused(imageID, logger) })
	}
}

func (s *imageStore) removeImageIfUnused(imageID string, logger hclog.Logger) {
	s.mu.Lock()
	_, due := s.removalTimersByImageID[imageID]
	delete(s.removalTimersByImageID, imageID)
	used := len(s.startIDsByImageID[imageID]) > 0
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

// loadImageArchive loads an image archive of the task's local directory into the engine.
func (s *imageStore) loadImageArchive(ctx context.Context, t *taskConfig, start *sdk.StartRequest) error {
	archive, err := openImageArchive(filepath.Join(start.TaskDir(), "local"), t.Load)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer archive.Close()
	limit := pullLimit{"image_pull_timeout", cmp.Or(t.imagePullTimeout, s.currentConfig().imagePullTimeout)}
	ctx, cancel := context.WithTimeoutCause(ctx, limit.timeout, fmt.Errorf("not complete after %s, %v", limit.optionName, limit.timeout))
	defer cancel()
	err = func() error {
		result, err := s.client().ImageLoad(ctx, archive, client.ImageLoadWithQuiet(true))
		if err != nil {
			return markRecoverableUnlessRefused(err)
		}
		defer result.Close()
		return readEngineMessages(result, func(string) {})
	}()
	if ctx.Err() != nil {
		err = sdk.Recoverable(context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("load %s: %w", t.Load, err)
	}
	return nil
}

// sizeLimitedArchive reads an archive up to the size that it had when it was opened, because a task
// could append to the file forever.
type sizeLimitedArchive struct {
	io.Reader
	io.Closer
}

// openImageArchive opens a file of a directory in which tasks can write. It rejects a sparse file that
// is larger than its disk.
func openImageArchive(taskLocalDir, archivePath string) (io.ReadCloser, error) {
	taskLocalDir, err := filepath.EvalSymlinks(taskLocalDir)
	if err != nil {
		return nil, err
	}
	resolved, err := filepath.EvalSymlinks(filepath.Join(taskLocalDir, archivePath))
	if err != nil {
		return nil, err
	}
	if !isPathEqualOrBelow(resolved, taskLocalDir) {
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
	return sizeLimitedArchive{io.LimitReader(f, info.Size()), f}, nil
}

// errPullUnused is the cause that ends a pull for which no start waits.
var errPullUnused = errors.New("no task waits for the image")

// pullTaskImage pulls the image of a task.
func (s *imageStore) pullTaskImage(ctx context.Context, ref imageRef, t *taskConfig, start *sdk.StartRequest) error {
	if ref.namedRef == nil {
		return nil // an image id cannot be pulled
	}
	auth, err := registryAuthHeader(ctx, ref.namedRef, t.Auth, s.currentConfig().Auth)
	if err != nil {
		if !t.AuthSoftFail {
			return fmt.Errorf("credentials for the image %s: %w", ref.name, err)
		}
		start.Event(fmt.Sprintf("Pulling %s without credentials: %v", ref.name, err))
	}
	start.EventWithDetails("Downloading image", map[string]string{"image": ref.name})
	return s.pullOrJoin(ctx, ref, auth, pullLimit{"image_pull_timeout", cmp.Or(t.imagePullTimeout, s.currentConfig().imagePullTimeout)})
}

// pullLimit is an option that limits how long a caller waits for a pull.
type pullLimit struct {
	optionName string
	timeout    time.Duration
}

// pullOrJoin pulls an image, or waits for a running pull of the same image with the same
// credentials. It returns an error when the limit is reached. The pull is cancelled when its last
// waiter has returned.
func (s *imageStore) pullOrJoin(ctx context.Context, ref imageRef, authHeader string, limit pullLimit) (err error) {
	key := ref.name + "\x00" + authHeader
	s.mu.Lock()
	p := s.pullsByImageAndAuth[key]
	if p == nil {
		pullCtx, cancel := context.WithCancelCause(context.Background())
		p = &imagePull{cancel: cancel, done: make(chan struct{})}
		s.pullsByImageAndAuth[key] = p
		go func() {
			p.err = s.pullUnlessStalled(pullCtx, ref, authHeader)
			s.mu.Lock()
			if s.pullsByImageAndAuth[key] == p {
				delete(s.pullsByImageAndAuth, key)
			}
			s.mu.Unlock()
			cancel(nil)
			close(p.done)
		}()
	}
	p.waiterCount++
	s.mu.Unlock()

	timer := time.NewTimer(limit.timeout)
	defer timer.Stop()
	select {
	case <-p.done:
		err = p.err
	case <-timer.C:
		err = sdk.Recoverable(fmt.Errorf("pull %s: not complete after %s, %v", ref.name, limit.optionName, limit.timeout))
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.waiterCount--; p.waiterCount == 0 {
		if s.pullsByImageAndAuth[key] == p {
			delete(s.pullsByImageAndAuth, key) // deleted, so that a later start begins a new pull
		}
		p.cancel(errPullUnused)
	}
	return err
}

// pullUnlessStalled pulls an image until it is complete, or no progress was made for
// pull_activity_timeout.
func (s *imageStore) pullUnlessStalled(ctx context.Context, ref imageRef, authHeader string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := s.currentConfig().pullActivityTimeout
	watchdog := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no progress for %v (pull_activity_timeout)", limit)) })
	defer watchdog.Stop()
	err := func() error {
		response, err := s.client().ImagePull(ctx, ref.name, client.ImagePullOptions{RegistryAuth: authHeader})
		if err != nil {
			return err
		}
		defer response.Close()
		return readEngineMessages(response, func(string) { watchdog.Reset(limit) })
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
