package version

import (
	"cmp"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// Release builds set these variables with -ldflags "-X PACKAGE.Release=…", where PACKAGE is the path of this package. In
// a development build they are empty.
var (
	Release           = "" // version of the release
	ReleaseRevision   = "" // commit, for a build from sources without a repository
	ReleaseCommitTime = "" // time of the commit, RFC 3339
)

// develVersion is the version of a build that has neither a module version nor a revision.
const develVersion = "devel"

// NewCommand returns the command "version".
func NewCommand(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return ReadBuild().writeVersion(s.Out)
		},
	}
}

// Build is the version and the source revision of this binary, as the Go tool has recorded them.
type Build struct {
	Version          string // the release, the module version, "devel+REVISION", or "devel"
	Revision         string // commit; "" if the Go tool has not recorded it
	CommitTime       string // time of the commit, RFC 3339
	WorkTreeModified bool   // the work tree had uncommitted changes
}

// String returns the version of this binary.
func String() string { return ReadBuild().Version }

// ReadBuild returns the build information of this binary.
func ReadBuild() Build {
	info, _ := debug.ReadBuildInfo()
	return newBuild(Build{Version: Release, Revision: ReleaseRevision, CommitTime: ReleaseCommitTime}, info)
}

// newBuild returns the build information of a release, or of a development build if release is empty. What the Go tool
// has recorded takes precedence over the revision and the time of the release. info can be nil.
func newBuild(release Build, info *debug.BuildInfo) Build {
	if info == nil {
		info = new(debug.BuildInfo)
	}
	b := release
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			b.Revision = setting.Value
		case "vcs.time":
			b.CommitTime = setting.Value
		case "vcs.modified":
			b.WorkTreeModified = setting.Value == "true"
		}
	}
	b.Version = cmp.Or(release.Version, strings.TrimPrefix(info.Main.Version, "(devel)"))
	if b.Version == "" {
		b.Version = develVersion
		if b.Revision != "" {
			b.Version += "+" + b.Revision[:min(12, len(b.Revision))]
		}
		if b.WorkTreeModified {
			b.Version += ".dirty"
		}
	}
	return b
}

// SemverMetadata returns the version in the form of the build metadata of a semantic version, which consists of
// letters, digits, hyphens and dots.
func (b Build) SemverMetadata() string { return "lite." + strings.ReplaceAll(b.Version, "+", ".") }

// writeVersion writes the output of the version command. It leaves out unknown values.
func (b Build) writeVersion(w io.Writer) error {
	text := "nomad-lite " + b.Version + "\n"
	if b.Revision != "" {
		text += "Revision " + b.Revision
		if b.WorkTreeModified {
			text += " (modified)"
		}
		text += "\n"
	}
	if b.CommitTime != "" {
		text += "Date " + b.CommitTime + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}
