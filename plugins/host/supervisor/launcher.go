package supervisor

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
)

// launcher starts the processes of plugins, or reattaches those that an earlier supervisor has started.
type launcher struct {
	cfg           Config
	pluginRecords *pluginRecords
	loggedPanics  launch.LoggedPanics
}

// launchOrReattach starts or reattaches the process of one catalog entry.
func (l *launcher) launchOrReattach(ctx context.Context, e catalog.Entry) (pluginInstance, error) {
	binary, err := e.Open(l.cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e, err)
	}
	defer binary.Close()
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	sockets, err := l.cfg.SocketDir()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e, err)
	}
	cfg := launch.Config{
		Name:         e.Name,
		Path:         binary.Path,
		Argv:         binary.Argv,
		Env:          launch.PluginEnviron(os.Environ(), e.InheritedEnvPatterns(), l.cfg.KeeperSocket, l.cfg.DirectoryID),
		WorkDir:      dir,
		SocketDir:    sockets,
		Keeper:       l.cfg.Keeper,
		DriverConfig: l.cfg.DriverConfig,
		HookConfig:   l.cfg.HookConfig,
		LoggedPanics: &l.loggedPanics,
		Logger:       l.cfg.Logger,
	}
	if onCall := l.cfg.OnCall; onCall != nil {
		cfg.OnCall = func(method string, d time.Duration, failed bool) { onCall(e.Name, method, d, failed) }
	}
	if !binary.IsScript {
		cfg.Executable = binary.File
	}
	if e.Block != nil {
		cfg.Settings = e.Block.Config
		if e.Block.Range.Filename != "" {
			cfg.SettingsBlockPosition = e.Block.Range.String()
		}
	}
	if l.pluginRecords.store == nil {
		p, err := launch.Start(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
	identity, err := pluginIdentity(e, binary)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e, err)
	}
	p, err := l.pluginRecords.reattach(ctx, e, cfg, binary, identity)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", e, err)
	case p != nil:
		return reattachedPlugin{p}, nil
	}
	key := recordKey(e)
	cfg.Keeper = recordingKeeper{cfg.Keeper, func(id osprocess.ID) { l.pluginRecords.storeLaunchRecord(key, id, identity) }}
	p, err = launch.Start(ctx, cfg)
	if err != nil {
		l.pluginRecords.deleteRecord(key)
		return nil, err
	}
	l.pluginRecords.storeRecord(ctx, e, p, identity)
	return p, nil
}
