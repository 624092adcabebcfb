package cni

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/groupexec"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// versionTimeout limits how long runForPluginVersionOrEmpty waits for a plugin to print its version.
var versionTimeout = 2 * time.Second

// versionPattern matches the last word on the first line that ends with a version, as Nomad does. Some plugins print
// "CNI bridge plugin v1.1.1", others only a line with their supported protocol versions.
var versionPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)(?:^|\s)(v?\d+\.\d+\.\d+\S*)[ \t\r]*$`)
})

// RunForPluginVersionByName returns installed plugin name -> version. It runs each program in the plugin directories,
// and skips programs that print no version.
func (c *Client) RunForPluginVersionByName(ctx context.Context) map[string]string {
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
			if version := runForPluginVersionOrEmpty(ctx, filepath.Join(dir, name)); version != "" {
				versions[name] = version
			}
		}
	}
	return versions
}

// runForPluginVersionOrEmpty runs a plugin and returns its version, "" if the file is no program or prints no version.
func runForPluginVersionOrEmpty(ctx context.Context, path string) string {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	opcount.Count(opcount.Fork)
	command := exec.CommandContext(ctx, path, "--version")
	command.Env = []string{}
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := groupexec.Run(command); err != nil {
		return ""
	}
	match := versionPattern().FindSubmatch(output.Bytes())
	if match == nil {
		return ""
	}
	return string(match[1])
}
