package launch

import (
	"slices"
	"strings"

	plugin "github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// handshakeVars are the variables of the go-plugin handshake. PluginEnviron omits them from the agent's environment,
// because a plugin host may have started the agent and have set them for its own handshake.
var handshakeVars = []string{
	basewire.Handshake.MagicCookieKey,
	"PLUGIN_MIN_PORT", "PLUGIN_MAX_PORT", "PLUGIN_PROTOCOL_VERSIONS", "PLUGIN_CLIENT_CERT", "PLUGIN_MULTIPLEX_GRPC",
	plugin.EnvUnixSocketDir, plugin.EnvUnixSocketGroup,
}

// Variables with the prefix agentEnvPrefix are for the agent only, and some are secret.
// Variables with the longer prefix pluginEnvPrefix are for plugins.
const (
	agentEnvPrefix  = "NOMAD_LITE_"
	pluginEnvPrefix = "NOMAD_LITE_PLUGIN_"
)

// PluginEnviron returns the environment of a plugin: those variables of the agent's environment environ whose names
// are in allow, the path of the keeper's socket, and the id of the data directory. NAME* in allow matches every name
// with the prefix NAME. A nil allow permits all variables but those in [base.EnvDenylist]. Variables for the agent
// only (agentEnvPrefix) and handshakeVars are never included.
func PluginEnviron(environ, allow []string, keeperSocket, directoryID string) []string {
	var env []string
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		own := strings.HasPrefix(name, agentEnvPrefix) && !strings.HasPrefix(name, pluginEnvPrefix)
		if !own && !slices.Contains(handshakeVars, name) && isAllowedEnv(name, allow) {
			env = append(env, v)
		}
	}
	if keeperSocket != "" {
		env = append(env, keeper.EnvSocket+"="+keeperSocket)
	}
	if directoryID != "" {
		env = append(env, keeper.EnvDirectoryID+"="+directoryID)
	}
	return env
}

func isAllowedEnv(name string, allow []string) bool {
	if allow == nil {
		return !slices.Contains(base.EnvDenylist(), name)
	}
	return slices.ContainsFunc(allow, func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return name == pattern || open && strings.HasPrefix(name, prefix)
	})
}
