//go:build linux

package osprocess

import "testing"

func TestOwnCgroupIsTheOneOfVersion2(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"version 2":          {"0::/system.slice/x.service\n", "/system.slice/x.service"},
		"both versions":      {"12:memory:/a\n1:name=systemd:/0::/b\n0::/c\n", "/c"},
		"version 1":          {"12:memory:/a\n", ""},
		"a space at the end": {"0::/a \n", "/a "},
		"the root":           {"0::/\n", "/"},
	} {
		if got := parseOwnCgroup(tc.text); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
