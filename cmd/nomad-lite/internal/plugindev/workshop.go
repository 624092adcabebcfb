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

// Workshop is a plugin directory with the newest program of a project that starts.
type Workshop struct {
	Project *Project
	Plugins localplugins.Plugins // the plugins of the agent that uses the directory
	Args    []string             // arguments of the program
	// Debuggable builds a program in Go without optimizations.
	Debuggable bool

	dir string // temporary, with the plugin directory and the directories of builds
	key supervisor.PluginKey
	// fileName is the name of the program, "" before the first Update.
	fileName string
}

// NewWorkshop returns a workshop in a new temporary directory. The caller must call Close.
func NewWorkshop(p *Project, plugins localplugins.Plugins, args []string) (*Workshop, error) {
	dir, err := os.MkdirTemp("", "nomad-lite-dev-")
	if err != nil {
		return nil, err
	}
	w := &Workshop{Project: p, Plugins: plugins, Args: args, dir: dir}
	if err := os.Mkdir(w.pluginDir(), 0o700); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Close removes the directory.
func (w *Workshop) Close() error { return os.RemoveAll(w.dir) }

func (w *Workshop) pluginDir() string { return filepath.Join(w.dir, "plugins") }

// Name returns the name of the program's file. It is "" before the first successful Update.
func (w *Workshop) Name() string { return w.fileName }

// Key returns the driver, hook or device plugin that the program serves.
func (w *Workshop) Key() supervisor.PluginKey { return w.key }

// Program returns the path of the newest program that starts.
func (w *Workshop) Program() string { return filepath.Join(w.pluginDir(), w.fileName) }

// Socket returns a path for the socket of a debugged process.
func (w *Workshop) Socket() string { return filepath.Join(w.dir, "debug.sock") }

// Update builds the program, checks that it starts, and puts it into the plugin directory. It reports whether the
// program is another one than before. After an error the previous program stays.
func (w *Workshop) Update(ctx context.Context) (changed bool, err error) {
	out, err := os.MkdirTemp(w.dir, "build-")
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
	case w.fileName != "" && sameContent(program, w.Program()):
		return false, nil
	}
	started, err := localplugins.StartOnce(ctx, w.pluginsIn(out, name), name)
	if err != nil {
		return false, err
	}
	key := started.Serves
	if w.fileName != "" && key != w.key {
		return false, fmt.Errorf("the plugin is %s now, and was %s: start again", key, w.key)
	}
	if err := os.Rename(program, filepath.Join(w.pluginDir(), name)); err != nil {
		return false, err
	}
	w.fileName, w.key = name, key
	return true, nil
}

// AgentPlugins returns the plugins of an agent that uses the program. It must be called after a
// successful Update.
func (w *Workshop) AgentPlugins() localplugins.Plugins { return w.pluginsIn(w.pluginDir(), w.fileName) }

// pluginsIn returns the plugins with a plugin block for a program in a directory.
func (w *Workshop) pluginsIn(dir, name string) localplugins.Plugins {
	config := *w.Plugins.Config
	config.PluginDir = dir
	block := catalog.PluginBlock{Name: name, Args: w.Args}
	config.Plugins = nil
	for _, b := range w.Plugins.Config.Plugins {
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
