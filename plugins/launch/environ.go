package launch

import (
	"slices"
	"strings"

	plugin "github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// handshakeVars are the variables of the handshake: those of the plugin are made for it,
// and must not be those of a process that this one runs in.
var handshakeVars = []string{
	base.Handshake.MagicCookieKey,
	"PLUGIN_MIN_PORT", "PLUGIN_MAX_PORT", "PLUGIN_PROTOCOL_VERSIONS", "PLUGIN_CLIENT_CERT", "PLUGIN_MULTIPLEX_GRPC",
	plugin.EnvUnixSocketDir, plugin.EnvUnixSocketGroup,
}

// Variables of this program are its own, and some are secret, except those that
// are meant for plugins.
const (
	ownPrefix    = "NOMAD_LITE_"
	pluginPrefix = "NOMAD_LITE_PLUGIN_"
)

// Environ is the environment of a plugin: of environ, which is the agent's, the names
// in allow, where NAME* is each name that begins so, and the address of the keeper. A
// nil allow means all but some secrets. What belongs to the agent itself or to the
// handshake is never in it.
func Environ(environ, allow []string, keeperSocket string) []string {
	var env []string
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		own := strings.HasPrefix(name, ownPrefix) && !strings.HasPrefix(name, pluginPrefix)
		if !own && !slices.Contains(handshakeVars, name) && allowed(name, allow) {
			env = append(env, v)
		}
	}
	if keeperSocket != "" {
		env = append(env, keeper.EnvSocket+"="+keeperSocket)
	}
	return env
}

func allowed(name string, allow []string) bool {
	if allow == nil {
		return !slices.Contains(base.EnvDenylist(), name)
	}
	return slices.ContainsFunc(allow, func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return name == pattern || open && strings.HasPrefix(name, prefix)
	})
}
