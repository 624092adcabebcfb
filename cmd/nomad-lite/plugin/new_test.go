package plugin

import "testing"

func TestRequirableVersionHasPrefix(t *testing.T) {
	for programVersion, want := range map[string]string{
		"0.1.0":      "v0.1.0", // a release, which the linker sets
		"0.2.0-rc.1": "v0.2.0-rc.1",
		"v0.1.0":     "v0.1.0", // go install
		"v0.0.0-20261121092735-0123456789ab+dirty": "v0.0.0-20261121092735-0123456789ab+dirty",
		"devel+0123456789ab":                       "devel+0123456789ab",
	} {
		if got := requirableVersion(programVersion); got != want {
			t.Errorf("version %s is required as %s, want %s", programVersion, got, want)
		}
	}
}

func TestGoLineHasNoPatchRelease(t *testing.T) {
	for runtimeVersion, want := range map[string]string{
		"go1.26.8":                "1.26",
		"go1.27rc1":               "1.27",
		"devel go1.27-0123456789": "1.26",
	} {
		if got := goLanguageVersion(runtimeVersion); got != want {
			t.Errorf("a program built with %s writes the go line %q, want %q", runtimeVersion, got, want)
		}
	}
}
