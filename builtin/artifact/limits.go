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

// Limits is the operator's configuration, with the names of the artifact block
// in Nomad's client block.
type Limits struct {
	HTTPTimeout      time.Duration `json:"http_read_timeout"` // timeout of each file; 0 means no timeout
	HTTPMaxBytes     int64         `json:"http_max_size"`     // maximum bytes of each file; 0 means no limit
	GitTimeout       time.Duration `json:"git_timeout"`
	HgTimeout        time.Duration `json:"hg_timeout"`
	S3Timeout        time.Duration `json:"s3_timeout"`                     // timeout of the whole artifact, with all its objects
	MaxFiles         int           `json:"decompression_limit_file_count"` // number of files; 0 means no limit
	MaxUnpackedBytes int64         `json:"decompression_limit_size"`       // bytes; 0 means no limit
	// MaxUnpackRatio is the maximum size of an archive's content, as a multiple of the archive's
	// size. It does not apply to content of at most unpackRatioLimitMinSize bytes.
	MaxUnpackRatio int64 `json:"decompression_limit_ratio"` // 0 means no limit
	// EnvNames are the names of additional environment variables for downloads.
	EnvNames []string `json:"set_environment_variables"`
	// ExtraPaths are additional paths that downloads can access, as "d:rx:/path" for
	// a directory and "f:r:/path" for a file. A readable path may be a source.
	ExtraPaths      []string `json:"filesystem_isolation_extra_paths"`
	DisableLandlock bool     `json:"disable_filesystem_isolation"`
	// DownloadUIDs are the user ids that downloads may have, in the syntax of
	// idrange.ParseDownloadUIDs.
	DownloadUIDs string `json:"download_uids"`
}

// defaultLimits returns Nomad's defaults.
func defaultLimits() Limits {
	return Limits{
		HTTPTimeout:      30 * time.Minute,
		HTTPMaxBytes:     100e9,
		GitTimeout:       30 * time.Minute,
		HgTimeout:        30 * time.Minute,
		S3Timeout:        30 * time.Minute,
		MaxFiles:         4096,
		MaxUnpackedBytes: 100e9,
		MaxUnpackRatio:   1000,
	}
}

// unpackRatioLimitMinSize is the unpacked size below which MaxUnpackRatio has no
// effect.
const unpackRatioLimitMinSize = 256 << 20

// maxDownloadDuration returns the time after which the process of a download is killed.
func (l *Limits) maxDownloadDuration() time.Duration {
	return max(l.HTTPTimeout, l.GitTimeout, l.HgTimeout, l.S3Timeout, 30*time.Minute) + time.Minute
}

// extraLandlockPath is a parsed element of Limits.ExtraPaths.
type extraLandlockPath struct {
	accessLetters string // letters: r = read, w = write, c = create, x = execute
	path          string
}

func (p extraLandlockPath) isReadable() bool { return strings.Contains(p.accessLetters, "r") }

// parseExtraPaths returns the elements of ExtraPaths. It skips invalid ones, which
// the agent has already rejected.
func (l *Limits) parseExtraPaths() []extraLandlockPath {
	var all []extraLandlockPath
	for _, text := range l.ExtraPaths {
		if parts := strings.SplitN(text, ":", 3); len(parts) == 3 {
			all = append(all, extraLandlockPath{accessLetters: parts[1], path: parts[2]})
		}
	}
	return all
}

// withoutInaccessiblePaths returns the limits without the extra paths that this process cannot
// access: its child processes cannot access them either.
func (l Limits) withoutInaccessiblePaths() Limits {
	l.ExtraPaths = slices.DeleteFunc(slices.Clone(l.ExtraPaths), func(text string) bool {
		parts := strings.SplitN(text, ":", 3)
		if len(parts) != 3 {
			return false
		}
		_, err := os.Lstat(parts[2])
		return errors.Is(err, fs.ErrPermission)
	})
	return l
}

// unpackQuota counts the unpacked files, directories and bytes of an archive or
// a repository.
type unpackQuota struct {
	limits           Limits
	archiveBytes     int64 // bytes; 0 means that MaxUnpackRatio does not apply
	fileCount        int
	implicitDirCount int // directories that are no entry of the archive, and are made because an entry is below them
	byteCount        int64
}

func (u *unpackQuota) addFile() error {
	if u.fileCount++; u.limits.MaxFiles > 0 && u.fileCount > u.limits.MaxFiles {
		return fmt.Errorf("it holds more than %d files: see decompression_limit_file_count in the client's artifact block", u.limits.MaxFiles)
	}
	return nil
}

func (u *unpackQuota) addImplicitDir() error {
	if u.implicitDirCount++; u.limits.MaxFiles > 0 && u.implicitDirCount > u.limits.MaxFiles {
		return fmt.Errorf("it holds more than %d directories: see decompression_limit_file_count in the client's artifact block", u.limits.MaxFiles)
	}
	return nil
}

func (u *unpackQuota) addBytes(n int64) error {
	u.byteCount += n
	if u.limits.MaxUnpackedBytes > 0 && u.byteCount > u.limits.MaxUnpackedBytes {
		return u.newContentTooLargeError()
	}
	if r := u.limits.MaxUnpackRatio; r > 0 && u.archiveBytes > 0 && u.byteCount > unpackRatioLimitMinSize && u.byteCount/r > u.archiveBytes {
		return fmt.Errorf("it unpacks to more than %d times its size, like a bomb: see decompression_limit_ratio in the client's artifact block", r)
	}
	return nil
}

func (u *unpackQuota) newContentTooLargeError() error {
	return fmt.Errorf("it unpacks to more than %s: see decompression_limit_size in the client's artifact block", formatSize(u.limits.MaxUnpackedBytes))
}

// Write counts the bytes that are written to an unpacked file.
func (u *unpackQuota) Write(p []byte) (int, error) {
	if err := u.addBytes(int64(len(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
