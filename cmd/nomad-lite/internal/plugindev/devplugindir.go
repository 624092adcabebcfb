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
	Project      *Project
	OtherPlugins localplugins.Plugins // the other plugins of the agent that uses the directory
	Args         []string             // arguments of the program
	// Debuggable makes Update build a Go program without optimizations.
	Debuggable bool

	tempDir   string // temporary directory, which has the plugin directory and one directory for each build
	pluginKey supervisor.PluginKey
	// fileName is the file name of the program, or "" before the first successful Update.
	fileName string
}

// NewDevPluginDir returns a DevPluginDir in a new temporary directory. The caller must call Close.
func NewDevPluginDir(p *Project, plugins localplugins.Plugins, args []string) (*DevPluginDir, error) {
	dir, err := os.MkdirTemp("", "nomad-lite-dev-")
	if err != nil {
		return nil, err
	}
	w := &DevPluginDir{Project: p, OtherPlugins: plugins, Args: args, tempDir: dir}
	if err := os.Mkdir(w.pluginDir(), 0o700); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Close removes the directory.
func (w *DevPluginDir) Close() error { return os.RemoveAll(w.tempDir) }

func (w *DevPluginDir) pluginDir() string { return filepath.Join(w.tempDir, "plugins") }

// ProgramName returns the name of the program's file. It is "" before the first successful Update.
func (w *DevPluginDir) ProgramName() string { return w.fileName }

// PluginKey returns the type and the name of the plugin that the program serves.
func (w *DevPluginDir) PluginKey() supervisor.PluginKey { return w.pluginKey }

// ProgramPath returns the path of the latest build that starts.
func (w *DevPluginDir) ProgramPath() string { return filepath.Join(w.pluginDir(), w.fileName) }

// DebugSocketPath returns the path for the socket of a program that runs in a debugger.
func (w *DevPluginDir) DebugSocketPath() string { return filepath.Join(w.tempDir, "debug.sock") }

// Update builds the program, checks that it starts, and puts it into the plugin directory. changed is true if the
// program differs from the one in the directory. After an error the previous program stays.
func (w *DevPluginDir) Update(ctx context.Context) (changed bool, err error) {
	out, err := os.MkdirTemp(w.tempDir, "build-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(out)) }()
	program, err := w.Project.Build(ctx, out, w.Debuggable)
	if err != nil {
		return false, err
	}
	name := filepath.Base(program)
	switch {
	case w.fileName != "" && name != w.fileName:
		return false, fmt.Errorf("the program is named %s now, and was %s: start again", name, w.fileName)
	case w.fileName != "" && haveSameContent(program, w.ProgramPath()):
		return false, nil
	}
	started, err := localplugins.StartPluginOnce(ctx, w.pluginsWithProgramIn(out, name), name)
	if err != nil {
		return false, err
	}
	key := started.Serves
	if w.fileName != "" && key != w.pluginKey {
		return false, fmt.Errorf("the plugin is %s now, and was %s: start again", key, w.pluginKey)
	}
	if err := os.Rename(program, filepath.Join(w.pluginDir(), name)); err != nil {
		return false, err
	}
	w.fileName, w.pluginKey = name, key
	return true, nil
}

// AgentPlugins returns the plugins of an agent that uses the program: the program and the other plugins. It must be
// called after a successful Update.
func (w *DevPluginDir) AgentPlugins() localplugins.Plugins {
	return w.pluginsWithProgramIn(w.pluginDir(), w.fileName)
}

// pluginsWithProgramIn returns Plugins with dir as the plugin directory and with a plugin block for the program name.
func (w *DevPluginDir) pluginsWithProgramIn(dir, name string) localplugins.Plugins {
	config := *w.OtherPlugins.Config
	config.PluginDir = dir
	block := catalog.PluginBlock{Name: name, Args: w.Args}
	config.Plugins = nil
	for _, b := range w.OtherPlugins.Config.Plugins {
		if b.Name != name {
			config.Plugins = append(config.Plugins, b)
			continue
		}
		block = b
		if len(w.Args) > 0 {
			block.Args = w.Args
		}
	}
	config.Plugins = append(config.Plugins, block)
	return localplugins.Plugins{Config: &config}
}
