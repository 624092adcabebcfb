package main

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"

	plugin "github.com/hashicorp/go-plugin"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
)

// strangeHook NAME MODE is a hook plugin that is not what a host expects.
func strangeHook() {
	s := &strange{
		name: os.Args[1], mode: os.Args[2],
		info: base.Info{Type: base.TypeHook, Name: os.Args[1], Version: "1.0.0", APIVersions: []string{hook.APIVersion}},
	}
	// Each launch leaves a mark.
	marks, _ := os.ReadFile(s.name + ".launches")
	s.launches = 1 + bytes.Count(marks, []byte("x"))
	if err := os.WriteFile(s.name+".launches", bytes.Repeat([]byte("x"), s.launches), 0o644); err != nil {
		panic(err)
	}
	handshake := base.Handshake
	switch s.mode {
	case "handshake":
		handshake.ProtocolVersion = 9
	case "cookie":
		handshake.MagicCookieValue = "another"
	case "name", "twin":
		s.info.Name = "somebody"
	case "no-name":
		s.info.Name = "../../etc/passwd"
	case "version":
		s.info.Version = "one"
	case "api":
		s.info.APIVersions = []string{"v9"}
	case "no-api":
		s.info.APIVersions = nil
	case "device":
		s.info.Type, s.info.APIVersions = base.TypeDevice, []string{"v0.1.0"}
	case "driver":
		s.info.Type, s.info.APIVersions = base.TypeDriver, []string{"v0.1.0"}
	case "renamed":
		if s.launches > 1 {
			s.info.Name = "somebody-else"
		}
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: handshake,
		Plugins: plugin.PluginSet{
			base.PluginName: &base.GRPCPlugin{Impl: s},
			hook.PluginName: &hook.GRPCPlugin{Impl: s, Hook: s},
		},
		GRPCServer: plugin.DefaultGRPCServer,
		Logger:     hclog.NewNullLogger(),
	})
}

type strange struct {
	hooks.Remote // all moments, none of which is called but those below
	name, mode   string
	launches     int
	info         base.Info
}

func (s *strange) PluginInfo(context.Context) (*base.Info, error) { return &s.info, nil }

func (s *strange) ConfigSchema(context.Context) (*hclspec.Spec, error) { return nil, nil }

func (s *strange) SetConfig(context.Context, *base.Config) error { return nil }

func (s *strange) Configure(context.Context, hook.Config) error { return nil }

func (s *strange) Describe(context.Context) (*hook.Description, error) {
	d := &hook.Description{Moments: []hook.Participation{{Moment: hook.Prerun}, {Moment: hook.Poststart}}}
	switch s.mode {
	case "exits":
		os.Exit(3)
	case "hangs":
		<-make(chan struct{})
	case "no-moments":
		d.Moments = nil
	case "future":
		d.Moments = []hook.Participation{{Moment: 99}}
	case "large":
		d.Schema = hclspec.Object(map[string]*hclspec.Spec{strings.Repeat("x", 5<<20): hclspec.Attr("x", "string", false)})
	case "changes":
		if s.launches > 1 { // no part in Prerun any more, and it wants to know more
			d.Moments = slices.Delete(d.Moments, 0, 1)
			d.Schema = hclspec.Object(map[string]*hclspec.Spec{"key": hclspec.Attr("key", "string", true)})
		}
	}
	return d, nil
}

func (s *strange) Prerun(context.Context, hook.AllocPrerunRequest) error { return nil }

func (s *strange) Poststart(context.Context, hook.TaskPoststartRequest) error { return nil }
