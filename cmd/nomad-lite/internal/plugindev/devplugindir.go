package plugindev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/localplugins"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
)

// DevPluginDir builds the program of a project, and keeps the latest build that starts in a temporary plugin directory.
type DevPluginDir struct {
	Project           *Project
	OtherAgentPlugins localplugins.PluginConfig // the other plugins of the agent that uses the directory
	ProgramArgs       []string                  // arguments of the program
	// Debuggable makes BuildTryStartAndInstall build a Go program without optimizations.
	Debuggable bool

	tempDir   string // temporary directory, which has the plugin directory and one directory for each build
	pluginKey supervisor.PluginKey
	// programFileName is the file name of the program, or "" before the first successful BuildTryStartAndInstall.
	programFileName string
}

// NewDevPluginDir returns a DevPluginDir in a new temporary directory. The caller must call Close.
func NewDevPluginDir(p *Project, plugins localplugins.PluginConfig, programArgs []string) (*DevPluginDir, error) {
	dir, err := os.MkdirTemp("", "nomad-lite-dev-")
	if err != nil {
		return nil, err
	}
	w := &DevPluginDir{Project: p, OtherAgentPlugins: plugins, ProgramArgs: programArgs, tempDir: dir}
	if err := os.Mkdir(w.pluginDir(), 0o700); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Close removes the directory.
func (d *DevPluginDir) Close() error { return os.RemoveAll(d.tempDir) }

func (d *DevPluginDir) pluginDir() string { return filepath.Join(d.tempDir, "plugins") }

// ProgramFileName returns the name of the program's file. It is "" before the first successful BuildTryStartAndInstall.
func (d *DevPluginDir) ProgramFileName() string { return d.programFileName }

// PluginKey returns the type and the name of the plugin that the program serves.
func (d *DevPluginDir) PluginKey() supervisor.PluginKey { return d.pluginKey }

// ProgramPath returns the path of the latest build that starts.
func (d *DevPluginDir) ProgramPath() string { return filepath.Join(d.pluginDir(), d.programFileName) }

// DebugSocketPath returns the path for the socket of a program that runs in a debugger.
func (d *DevPluginDir) DebugSocketPath() string { return filepath.Join(d.tempDir, "debug.sock") }

// BuildTryStartAndInstall builds the program, checks that it starts, and puts it into the plugin directory. changed is
// true if the program differs from the one in the directory. After an error the previous program stays.
func (d *DevPluginDir) BuildTryStartAndInstall(ctx context.Context) (changed bool, err error) {
	out, err := os.MkdirTemp(d.tempDir, "build-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(out)) }()
	program, err := d.Project.Build(ctx, out, d.Debuggable)
	if err != nil {
		return false, err
	}
	name := filepath.Base(program)
	switch {
	case d.programFileName != "" && name != d.programFileName:
		return false, fmt.Errorf("the program is named %s now, and was %s: start again", name, d.programFileName)
	case d.programFileName != "" && filesHaveSameContent(program, d.ProgramPath()):
		return false, nil
	}
	started, err := localplugins.TryStartPlugin(ctx, d.pluginsInDirWithProgram(out, name), name)
	if err != nil {
		return false, err
	}
	key := started.Serves
	if d.programFileName != "" && key != d.pluginKey {
		return false, fmt.Errorf("the plugin is %s now, and was %s: start again", key, d.pluginKey)
	}
	if err := os.Rename(program, filepath.Join(d.pluginDir(), name)); err != nil {
		return false, err
	}
	d.programFileName, d.pluginKey = name, key
	return true, nil
}

// PluginsForAgent returns the plugins of an agent that uses the program: the program and the other plugins. It must be
// called after a successful BuildTryStartAndInstall.
func (d *DevPluginDir) PluginsForAgent() localplugins.PluginConfig {
	return d.pluginsInDirWithProgram(d.pluginDir(), d.programFileName)
}

// pluginsInDirWithProgram returns OtherAgentPlugins with dir as the plugin directory and with a plugin block for the
// program.
func (d *DevPluginDir) pluginsInDirWithProgram(dir, programFileName string) localplugins.PluginConfig {
	config := *d.OtherAgentPlugins.Config
	config.PluginDir = dir
	block := catalog.PluginBlock{Name: programFileName, Args: d.ProgramArgs}
	config.Plugins = nil
	for _, b := range d.OtherAgentPlugins.Config.Plugins {
		if b.Name != programFileName {
			config.Plugins = append(config.Plugins, b)
			continue
		}
		block = b
		if len(d.ProgramArgs) > 0 {
			block.Args = d.ProgramArgs
		}
	}
	config.Plugins = append(config.Plugins, block)
	return localplugins.PluginConfig{Config: &config}
}
