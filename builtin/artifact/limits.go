package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Limits are what the operator allows, as Nomad names it in client { artifact {} }.
type Limits struct {
	HTTPTimeout time.Duration `json:"http_read_timeout"` // of one file; 0: none
	HTTPMaxSize int64         `json:"http_max_size"`     // bytes; 0: none
	GitTimeout  time.Duration `json:"git_timeout"`
	Files       int           `json:"decompression_limit_file_count"` // 0: none
	Unpacked    int64         `json:"decompression_limit_size"`       // bytes; 0: none
	// Ratio is how many times the size of an archive its content may have, once
	// that is worth a word.
	Ratio int64 `json:"decompression_limit_ratio"` // 0: none
	// Env names what else of the environment a download sees.
	Env []string `json:"set_environment_variables"`
	// Paths are what else of the file system it sees, as "d:rx:/path" for a
	// directory and "f:r:/path" for a file. What is readable may be a source.
	Paths      []string `json:"filesystem_isolation_extra_paths"`
	NoLandlock bool     `json:"disable_filesystem_isolation"`
	// UIDs are the user ids that downloads may have, as idrange.Downloads reads them.
	UIDs string `json:"download_uids"`
}

// defaults are Nomad's.
func defaults() Limits {
	return Limits{
		HTTPTimeout: 30 * time.Minute,
		HTTPMaxSize: 100e9,
		GitTimeout:  30 * time.Minute,
		Files:       4096,
		Unpacked:    100e9,
		Ratio:       1000,
	}
}

// ratioMinSize is the size below which the ratio does not matter.
const ratioMinSize = 256 << 20

// deadline is when a download must have ended, whatever it does.
func (l *Limits) deadline() time.Duration {
	return max(l.HTTPTimeout, l.GitTimeout, 30*time.Minute) + time.Minute
}

// extraPath is one of Limits.Paths.
type extraPath struct {
	mode string // of r, w, c and x
	path string
}

func (p extraPath) read() bool { return strings.Contains(p.mode, "r") }

// paths returns those that can be read: the agent has checked them.
func (l *Limits) paths() []extraPath {
	var all []extraPath
	for _, text := range l.Paths {
		if parts := strings.SplitN(text, ":", 3); len(parts) == 3 {
			all = append(all, extraPath{mode: parts[1], path: parts[2]})
		}
	}
	return all
}

// reachable leaves out the paths to which this process has no way: nothing that it
// starts has one.
func (l Limits) reachable() Limits {
	l.Paths = slices.DeleteFunc(slices.Clone(l.Paths), func(text string) bool {
		parts := strings.SplitN(text, ":", 3)
		if len(parts) != 3 {
			return false
		}
		_, err := os.Lstat(parts[2])
		return errors.Is(err, fs.ErrPermission)
	})
	return l
}

// quota counts what comes out of an archive or a repository.
type quota struct {
	limits Limits
	packed int64 // size of the archive; 0: there is no ratio
	files  int
	dirs   int // that no entry names
	bytes  int64
}

func (t *quota) file() error {
	if t.files++; t.limits.Files > 0 && t.files > t.limits.Files {
		return fmt.Errorf("it holds more than %d files: see decompression_limit_file_count in the client's artifact block", t.limits.Files)
	}
	return nil
}

func (t *quota) dir() error {
	if t.dirs++; t.limits.Files > 0 && t.dirs > t.limits.Files {
		return fmt.Errorf("it holds more than %d directories: see decompression_limit_file_count in the client's artifact block", t.limits.Files)
	}
	return nil
}

func (t *quota) add(n int64) error {
	t.bytes += n
	if t.limits.Unpacked > 0 && t.bytes > t.limits.Unpacked {
		return t.tooLarge()
	}
	if r := t.limits.Ratio; r > 0 && t.packed > 0 && t.bytes > ratioMinSize && t.bytes/r > t.packed {
		return fmt.Errorf("it unpacks to more than %d times its size, like a bomb: see decompression_limit_ratio in the client's artifact block", r)
	}
	return nil
}

func (t *quota) tooLarge() error {
	return fmt.Errorf("it unpacks to more than %s: see decompression_limit_size in the client's artifact block", size(t.limits.Unpacked))
}

// Write counts bytes on their way into a file.
func (t *quota) Write(p []byte) (int, error) {
	if err := t.add(int64(len(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
