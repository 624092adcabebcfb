package cni

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// versionTimeout limits the time in which a plugin must print its version.
var versionTimeout = 2 * time.Second

// versionPattern matches the version in a plugin's output: the last word of the first line that ends in a version, as in
// Nomad. Some builds print "CNI bridge plugin v1.1.1", others only the versions of the protocol, of which the last counts.
var versionPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)(?:^|\s)(v?\d+\.\d+\.\d+\S*)[ \t\r]*$`)
})

// PluginVersions returns the versions of the installed plugins by name. It runs each plugin, and leaves out
// programs that print no version.
func (c *Client) PluginVersions(ctx context.Context) map[string]string {
	versions := make(map[string]string)
	for _, dir := range c.config.PluginDirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // the directory need not exist
		}
		for _, entry := range entries {
			name := entry.Name()
			if _, found := versions[name]; found || strings.HasPrefix(name, ".") {
				continue
			}
			if version := readVersion(ctx, filepath.Join(dir, name)); version != "" {
				versions[name] = version
			}
		}
	}
	return versions
}

// readVersion returns the version of a plugin, "" if the file is no plugin.
func readVersion(ctx context.Context, path string) string {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, path, "--version")
	command.Env = []string{}
	command.WaitDelay = versionTimeout
	output, err := command.CombinedOutput()
	if err != nil {
		return ""
	}
	match := versionPattern().FindSubmatch(output)
	if match == nil {
		return ""
	}
	return string(match[1])
}
