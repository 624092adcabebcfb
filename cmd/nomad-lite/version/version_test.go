package version

import (
	"runtime/debug"
	"strings"
	"testing"

	semver "github.com/hashicorp/go-version"
)

func TestVersionOfABuild(t *testing.T) {
	const revision, pseudoVersion = "0123456789abcdef0123456789abcdef01234567", "v0.0.0-20261121092735-0123456789ab"
	recorded := func(module string, modified string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: module}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: revision}, {Key: "vcs.time", Value: "2026-11-21T09:27:35Z"}, {Key: "vcs.modified", Value: modified},
		}}
	}
	const vcsLines = "\nRevision " + revision + "\nDate 2026-11-21T09:27:35Z\n"
	modified := strings.Replace(vcsLines, "\nDate", " (modified)\nDate", 1)
	for _, test := range []struct {
		name     string
		release  Build
		info     *debug.BuildInfo
		printed  string
		metadata string
	}{
		{"without build information", Build{}, nil, "nomad-lite devel\n", "lite.devel"},
		{"without a repository", Build{}, &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "nomad-lite devel\n", "lite.devel"},
		{"go install of a version", Build{}, &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, "nomad-lite v1.2.3\n", "lite.v1.2.3"},
		{"go build in a checkout", Build{}, recorded(pseudoVersion, "false"), "nomad-lite " + pseudoVersion + vcsLines, "lite." + pseudoVersion},
		{"go build in a modified checkout", Build{}, recorded(pseudoVersion+"+dirty", "true"), "nomad-lite " + pseudoVersion + "+dirty" + modified, "lite." + pseudoVersion + ".dirty"},
		{"a revision without a module version", Build{}, recorded("(devel)", "false"), "nomad-lite devel+0123456789ab" + vcsLines, "lite.devel.0123456789ab"},
		{"a modified revision without a module version", Build{}, recorded("", "true"), "nomad-lite devel+0123456789ab.dirty" + modified, "lite.devel.0123456789ab.dirty"},
		{"a release without a repository", Build{Version: "1.0.0", Revision: revision, CommitTime: "2026-11-21T09:27:35Z"}, &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "nomad-lite 1.0.0" + vcsLines, "lite.1.0.0"},
		{"a release in a modified checkout", Build{Version: "1.0.0", Revision: "other", CommitTime: "other"}, recorded(pseudoVersion, "true"), "nomad-lite 1.0.0" + modified, "lite.1.0.0"},
		{"a release", Build{Version: "1.0.0"}, recorded(pseudoVersion, "false"), "nomad-lite 1.0.0" + vcsLines, "lite.1.0.0"},
	} {
		b := newBuild(test.release, test.info)
		var out strings.Builder
		if err := b.writeVersion(&out); err != nil || out.String() != test.printed {
			t.Errorf("%s: %v, printed %q, want %q", test.name, err, out.String(), test.printed)
		}
		if got := b.SemverMetadata(); got != test.metadata {
			t.Errorf("%s: metadata %s, want %s", test.name, got, test.metadata)
		}
		// Clients put a plus between the version and its build metadata.
		if _, err := semver.NewSemver("2.0.6+" + b.SemverMetadata()); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
