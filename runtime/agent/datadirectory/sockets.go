package datadirectory

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
)

const hookSocketName = "hooks.sock"

// SocketDir manages a data directory's socket directory. The clients of keeper and log collector open it by a file descriptor;
// plugins and hooks need a path short enough for a socket address. If the directory's path is too long, they use a link to it.
type SocketDir struct {
	dataDir       string
	dataDirHandle *keeper.DataDir
	keeper        *keeper.Client       // nil before SetKeeper
	hookListener  *replaceableListener // nil before ListenForHooks is called
	logger        hclog.Logger
	watchWG       sync.WaitGroup
	closeWatcher  func()

	mu            sync.Mutex // held while the directory is restored
	shortLinkPath string     // the directory's short path; "" if its own path is short enough
}

// MakeAndOpenSocketDir makes the directory for sockets. The caller must call Close.
func MakeAndOpenSocketDir(dataDir string, logger hclog.Logger) (*SocketDir, error) {
	dir, err := keeper.OpenOrCreateDataDir(dataDir)
	if err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	s := &SocketDir{dataDir: dataDir, dataDirHandle: dir, logger: logger}
	if _, err := s.RestoreMissingDirAndSockets(); err != nil {
		dir.Close()
		return nil, err
	}
	return s, nil
}

// SetKeeper makes the directory restore the keeper's socket, too.
func (s *SocketDir) SetKeeper(k *keeper.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeper = k
}

// shortPath returns a socket directory path that is short enough for socket addresses.
func (s *SocketDir) shortPath() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shortLinkPath != "" {
		return s.shortLinkPath
	}
	return helperdir.SocketDir(s.dataDir)
}

// RestoreMissingDirAndSockets creates the directory, the link, and the sockets of keeper and agent if they are missing: logind
// removes a user's directory at logout, and temporary directory cleaners remove old files. It returns the directory's short path.
func (s *SocketDir) RestoreMissingDirAndSockets() (shortPath string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := helperdir.SocketDir(s.dataDir)
	if err := s.dataDirHandle.EnsurePrivateSocketDir(); err != nil {
		return "", fmt.Errorf("make a directory for sockets: %w", err)
	}
	if len(path) > launch.MaxSocketDirLen {
		link, err := makeSocketDirLink(s.dataDir)
		if err != nil {
			return "", fmt.Errorf("make a short path for sockets: %w", err)
		}
		s.shortLinkPath, path = link, link
	}
	if s.keeper != nil {
		if err := s.keeper.RequestSocketRecreation(); err != nil {
			return "", fmt.Errorf("restore the socket of the keeper: %w", err)
		}
	}
	if s.hookListener != nil && !s.dataDirHandle.HasSocket(hookSocketName) {
		listener, err := s.dataDirHandle.ListenReplacingSocket(hookSocketName)
		if err != nil {
			return "", fmt.Errorf("restore the socket for hooks: %w", err)
		}
		s.hookListener.replace(listener)
	}
	return path, nil
}

// HookSocketPath returns the path of the socket at which hook plugins reach this agent and later agents.
func (s *SocketDir) HookSocketPath() string { return filepath.Join(s.shortPath(), hookSocketName) }

// ListenForHooks returns a listener on the socket for hook plugins. The listener continues when RestoreMissingDirAndSockets
// replaces the socket.
func (s *SocketDir) ListenForHooks() (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	listener, err := s.dataDirHandle.ListenReplacingSocket(hookSocketName)
	if err != nil {
		return nil, fmt.Errorf("socket for hooks: %w", err)
	}
	s.hookListener = newReplaceableListener(listener)
	return s.hookListener, nil
}

// StartRestoringRemovedSockets starts a goroutine that calls RestoreMissingDirAndSockets whenever a file is removed from the
// directory, until StopWatching or Close is called. If inotify is not available, StartRestoringRemovedSockets does nothing: the
// supervisor also calls RestoreMissingDirAndSockets before each plugin start.
func (s *SocketDir) StartRestoringRemovedSockets() {
	w, err := newRemovalWatcher()
	if err != nil {
		s.logger.Debug("the directory for sockets is not watched", "error", err)
		return
	}
	s.closeWatcher = w.close
	arm := func() {
		w.watchDir(helperdir.SocketDir(s.dataDir))
		if path := s.shortPath(); path != helperdir.SocketDir(s.dataDir) {
			w.watchDir(filepath.Dir(path))
		}
	}
	arm()
	s.watchWG.Go(func() {
		for w.waitForRemoval() {
			if _, err := s.RestoreMissingDirAndSockets(); err != nil {
				s.logger.Error("directory for sockets was removed", "error", err)
			}
			arm()
		}
	})
}

// StopWatching stops the goroutine started by StartRestoringRemovedSockets. It may be called twice.
func (s *SocketDir) StopWatching() {
	if s.closeWatcher != nil {
		s.closeWatcher()
		s.watchWG.Wait()
		s.closeWatcher = nil
	}
}

// Close calls StopWatching and closes the directory's file descriptor. It does not remove the sockets.
func (s *SocketDir) Close() error {
	s.StopWatching()
	return s.dataDirHandle.Close()
}

// Remove removes the socket directory and the link to it. The caller must ensure that no process uses the sockets.
func (s *SocketDir) Remove() error { return removeSockets(s.dataDir) }

// removeSockets removes a data directory's socket directory, and the links to it. A link with another target stays: the directory may
// have been removed meanwhile, and another one have got its inode, and so the name of its link.
func removeSockets(dataDir string) error {
	name, nameErr := socketDirLinkName(dataDir)
	real, realErr := filepath.EvalSymlinks(dataDir)
	errs := []error{os.RemoveAll(helperdir.SocketDir(dataDir))}
	if nameErr != nil || realErr != nil {
		return errs[0]
	}
	for _, base := range socketDirLinkParents() {
		for _, dir := range findDirAndSuffixedDirs(base) {
			link := filepath.Join(dir, name)
			if target, err := os.Readlink(link); err != nil || target != helperdir.SocketDir(real) {
				continue
			}
			if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// makeSocketDirLink creates a link to a data directory's sockets, which gives them a short path. The link is in a private
// directory. Its name is derived from the data directory's device and inode, so that it stays the same when the data directory is
// moved.
func makeSocketDirLink(dataDir string) (string, error) {
	real, err := filepath.EvalSymlinks(dataDir)
	if err != nil {
		return "", err
	}
	name, err := socketDirLinkName(dataDir)
	if err != nil {
		return "", err
	}
	target := helperdir.SocketDir(real)
	var errs []error
	for _, base := range socketDirLinkParents() {
		if len(filepath.Join(base, name)) > launch.MaxSocketDirLen {
			continue
		}
		dir, err := makeDirOrSuffixedDir(base, 0o700)
		link := filepath.Join(dir, name)
		if err == nil && len(link) > launch.MaxSocketDirLen {
			err = fmt.Errorf("%s is too long for sockets", link)
		}
		if err == nil {
			err = ensureSymlink(link, target)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		return link, nil
	}
	return "", errors.Join(errs...)
}

// socketDirLinkName returns the name of the link to a data directory's sockets.
func socketDirLinkName(dataDir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dataDir, &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: dataDir, Err: err}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d", st.Dev, st.Ino))
	return "link-" + hex.EncodeToString(sum[:6]), nil
}

// ensureSymlink makes a link, or replaces a link with another target.
func ensureSymlink(link, target string) error {
	if now, err := os.Readlink(link); err == nil && now == target {
		return nil
	}
	// The rename is atomic, so a process always finds the old or the new link.
	made := link + ".new"
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.Symlink(target, made), os.Rename(made, link))
}

// socketDirLinkParents returns the directories in which makeSocketDirLink tries to create the link, in this order.
func socketDirLinkParents() []string {
	var baseDirs []string
	if os.Geteuid() == 0 {
		baseDirs = append(baseDirs, "/run/nomad-lite")
	} else if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		baseDirs = append(baseDirs, filepath.Join(dir, "nomad-lite"))
	}
	return append(baseDirs, "/tmp/nomad-lite-"+strconv.Itoa(os.Geteuid())+"-run")
}

// replaceableListener is a listener with a socket that can be replaced while Accept blocks.
type replaceableListener struct {
	mu              sync.Mutex
	currentListener net.Listener
	closed          bool
}

func newReplaceableListener(l net.Listener) *replaceableListener {
	return &replaceableListener{currentListener: l}
}

// replace makes l the current listener and closes the previous one. If Close was called, it closes l.
func (r *replaceableListener) replace(l net.Listener) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		l.Close()
		return
	}
	r.currentListener.Close()
	r.currentListener = l
}

// Accept implements net.Listener.
func (r *replaceableListener) Accept() (net.Conn, error) {
	for {
		r.mu.Lock()
		current := r.currentListener
		r.mu.Unlock()
		conn, err := current.Accept()
		if err == nil || !errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		r.mu.Lock()
		replaced := r.currentListener != current
		r.mu.Unlock()
		if !replaced {
			return nil, err
		}
	}
}

// Close implements net.Listener.
func (r *replaceableListener) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.currentListener.Close()
}

// Addr implements net.Listener.
func (r *replaceableListener) Addr() net.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.currentListener.Addr()
}

// removalWatcher reports when files in the watched directories or these directories themselves are removed.
type removalWatcher struct {
	inotifyInstance *os.File // inotify instance
}

func newRemovalWatcher() (*removalWatcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return &removalWatcher{os.NewFile(uintptr(fd), "inotify")}, nil
}

// watchDir adds a directory to the watched directories if it exists. A second call for the same directory has no effect.
func (w *removalWatcher) watchDir(dir string) {
	raw, err := w.inotifyInstance.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		const eventMask = unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
		_, _ = unix.InotifyAddWatch(int(fd), dir, eventMask)
	})
}

// waitForRemoval blocks until a file or a watched directory is removed. It returns false after close.
func (w *removalWatcher) waitForRemoval() (removed bool) {
	_, err := w.inotifyInstance.Read(make([]byte, 4096)) // the events themselves are not needed
	return err == nil
}

func (w *removalWatcher) close() { w.inotifyInstance.Close() }
