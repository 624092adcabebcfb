package supervisor

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
)

// launcher starts the processes of plugins, or reattaches those that an earlier supervisor has started.
type launcher struct {
	cfg             Config
	recordedPlugins *recordedPlugins
	loggedPanics    launch.LoggedPanics
}

// launchOrReattach starts or reattaches the process of one catalog entry.
func (l *launcher) launchOrReattach(ctx context.Context, e catalog.Entry) (pluginInstance, error) {
	binary, err := e.OpenAndCheck(ctx, l.cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e, err)
	}
	defer binary.Close()
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	sockets, err := l.cfg.EnsureSocketDir()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e, err)
	}
	cfg := launch.Config{
		Name:         e.Name,
		Path:         binary.Path,
		Argv:         binary.Argv,
		Env:          launch.PluginEnviron(os.Environ(), e.InheritedEnvPatterns(), l.cfg.KeeperSocketPath, l.cfg.DataDirID),
		WorkDir:      dir,
		SocketDir:    sockets,
		Keeper:       l.cfg.Keeper,
		DriverConfig: l.cfg.DriverConfig,
		HookConfig:   l.cfg.HookConfig,
		LoggedPanics: &l.loggedPanics,
		Secrets:      l.cfg.Secrets,
		Logger:       l.cfg.Logger,
	}
	if onCall := l.cfg.AfterCall; onCall != nil {
		cfg.AfterCall = func(method string, d time.Duration, failed bool) { onCall(e.Name, method, d, failed) }
	}
	if !binary.IsScript {
		cfg.Executable = binary.File
	}
	if e.Block != nil {
		cfg.ConfigBlock = e.Block.Config
		if e.Block.Range.Filename != "" {
			cfg.ConfigBlockPosition = e.Block.Range.String()
		}
	}
	if l.recordedPlugins.store == nil {
		p, err := launch.Start(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
	identity, err := pluginIdentityHash(e, binary)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e, err)
	}
	p, err := l.recordedPlugins.reattachCurrentOrStop(ctx, e, cfg, binary, identity)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", e, err)
	case p != nil:
		return reattachedPlugin{p}, nil
	}
	key := recordKey(e)
	cfg.OnSpawn = func(c launch.ReattachConfig) { l.recordedPlugins.storeLaunchRecord(key, c, identity) }
	p, err = launch.Start(ctx, cfg)
	if err != nil {
		l.recordedPlugins.deleteRecord(key)
		return nil, err
	}
	l.recordedPlugins.storeRecordAndKeepRunning(ctx, e, p, identity)
	return p, nil
}
