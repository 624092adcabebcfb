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

// versionTimeout limits how long readPluginVersion waits for a plugin to print its version.
var versionTimeout = 2 * time.Second

// versionPattern matches the last word of the first line that ends with a version, as Nomad does. Some plugins print
// "CNI bridge plugin v1.1.1", others only a line with the protocol versions that they support.
var versionPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)(?:^|\s)(v?\d+\.\d+\.\d+\S*)[ \t\r]*$`)
})

// PluginVersions returns name of an installed plugin -> version. It runs each program in the plugin directories, and
// skips programs that print no version.
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
			if version := readPluginVersion(ctx, filepath.Join(dir, name)); version != "" {
				versions[name] = version
			}
		}
	}
	return versions
}

// readPluginVersion runs a plugin and returns its version, "" if the file is no program or prints no version.
func readPluginVersion(ctx context.Context, path string) string {
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
